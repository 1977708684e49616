"""The server as a process: uvicorn around the app, one or several of them."""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dept.errors import DataError, UsageError, missing_extra
from dept.io import check_folder
from dept.models.hub import WEIGHTS, located
from dept.serve.options import ServeOptions
from dept.serve.tokens import read_tokens

if TYPE_CHECKING:
    from fastapi import FastAPI

ENVIRONMENT = "DEPT_SERVE"
"""how server processes are told what to serve; it names files, and holds no token"""
DRAIN_SECONDS = 30
"""time that requests have to end after SIGTERM"""
START_SECONDS = 300
"""time that one of several processes has to start"""
OPEN_FILES = 16_384
"""open files of a process, if the system allows it: every larger image of an upload is one, and every client"""
logger = logging.getLogger("dept.progress")


def serve(model: Path, adapters: Path, options: ServeOptions) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that have been accepted are answered first."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise missing_extra(str(error.name), "serve") from error
    model = located(model, WEIGHTS)
    if not model.is_file():
        raise DataError(f"{model} does not exist. Give a model file.")
    check_folder(adapters, "adapters")
    if options.token_file is not None:
        read_tokens(options.token_file)
    _check_address(options)
    _allow_open_files()
    settings: dict[str, Any] = {"host": options.host, "port": options.port, "timeout_graceful_shutdown": DRAIN_SECONDS}
    settings |= {"server_header": False, "log_level": "warning", "access_log": False}
    if options.workers == 1:
        uvicorn.run(app_of(model, adapters, options), **settings)
        return
    told = {"model": str(model.resolve()), "adapters": str(adapters.resolve()), "options": asdict(options)}
    os.environ[ENVIRONMENT] = json.dumps(told, default=str)
    # A process that is loading torch and the model answers no ping; it must not be taken for dead.
    settings |= {"workers": options.workers, "timeout_worker_healthcheck": START_SECONDS}
    with tempfile.TemporaryDirectory(prefix="dept-metrics-") as shared:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared  # see `metrics.SHARED`
        uvicorn.run("dept.serve.server:from_environment", factory=True, **settings)


def _check_address(options: ServeOptions) -> None:
    """Raise, before the model is loaded, if the server could not listen there."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        socket.create_server((options.host, options.port), family=family).close()
    except OSError as error:
        raise UsageError(
            f"The server cannot listen on `host` {options.host}, `port` {options.port} ({error.strerror}). Choose "
            "another `port`, or stop the program that uses it."
        ) from error


def _allow_open_files() -> None:
    """Raise the limit of open files, which is 1,024 on many systems."""
    with suppress(ImportError, OSError, ValueError):  # a system without such limits, or with its own rules
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, OPEN_FILES)), hard))


def app_of(model: Path, adapters: Path, options: ServeOptions) -> FastAPI:
    """The app, with everything loaded."""
    from dept.serve.api import create_app
    from dept.serve.service import Service

    service = Service(model, adapters, options)
    for file, reason in service.refused.items():
        logger.info("Not served: %s. %s", file, reason)
    logger.info(
        "Serving %d domains on %s at http://%s:%d (%s).",
        len(service.pool.names()),
        service.model.card.arch,
        f"[{options.host}]" if ":" in options.host else options.host,
        options.port,
        "no token needed" if options.no_auth else "tokens needed",
    )
    return create_app(service)


def from_environment() -> FastAPI:
    """The app of one of several processes."""
    told: dict[str, Any] = json.loads(os.environ[ENVIRONMENT])
    values = told["options"]
    values["allow_folder"] = tuple(map(Path, values["allow_folder"]))
    values["token_file"] = Path(values["token_file"]) if values["token_file"] else None
    return app_of(Path(told["model"]), Path(told["adapters"]), ServeOptions(**values))

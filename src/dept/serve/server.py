"""The server as a process: uvicorn around the app, one or several of them."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dept.errors import DataError, missing_extra
from dept.io import check_folder
from dept.serve.options import ServeOptions

if TYPE_CHECKING:
    from fastapi import FastAPI

ENVIRONMENT = "DEPT_SERVE"
"""how server processes are told what to serve; it names files, and holds no token"""
DRAIN_SECONDS = 30
"""time that requests have to end after SIGTERM"""
START_SECONDS = 300
"""time that one of several processes has to start"""
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
    if not model.is_file():
        raise DataError(f"{model} does not exist. Give a model file.")
    check_folder(adapters, "adapters")
    settings: dict[str, Any] = {"host": options.host, "port": options.port, "timeout_graceful_shutdown": DRAIN_SECONDS}
    settings |= {"server_header": False, "log_level": "warning", "access_log": False}
    if options.workers == 1:
        uvicorn.run(app_of(model, adapters, options), **settings)
        return
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp(prefix="dept-metrics-")  # see `metrics.SHARED`
    told = {"model": str(model.resolve()), "adapters": str(adapters.resolve()), "options": asdict(options)}
    os.environ[ENVIRONMENT] = json.dumps(told, default=str)
    # A process that is loading torch and the model answers no ping; it must not be taken for dead.
    settings |= {"workers": options.workers, "timeout_worker_healthcheck": START_SECONDS}
    uvicorn.run("dept.serve.server:from_environment", factory=True, **settings)


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
        options.host,
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

"""The HTTP API: routes, errors as sentences, and the gate that every request passes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from dept._version import __version__
from dept.errors import DataError, DeptError, UsageError
from dept.serve.batcher import DeadlinePassed, QueueFull
from dept.serve.gate import Gate
from dept.serve.pool import Conflict, NotFound
from dept.serve.routes import checks, domains, jobs, predict, server
from dept.serve.service import Service
from dept.serve.tokens import read_tokens

STATUS: dict[type[DeptError], int] = {
    NotFound: 404,
    Conflict: 409,
    UsageError: 400,
    DataError: 422,
    QueueFull: 429,
    DeadlinePassed: 408,
    DeptError: 500,
}
"""of errors; the first type that fits counts"""


def create_app(service: Service) -> FastAPI:
    """The application around a service, which it starts and stops."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="dept",
        version=__version__,
        description="Predictions of one frozen backbone for many domains, each with its own adapter.",
        lifespan=lifespan,
        docs_url=None,  # both pages fetch scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    for part in (server, predict, domains, checks, jobs):
        app.include_router(part.router)
    app.add_exception_handler(DeptError, _told)
    tokens = read_tokens(service.options.token_file) if service.options.token_file else None
    app.add_middleware(
        Gate,
        options=service.options,
        tokens=tokens,
        counted=lambda route, status: service.metrics.requests.labels(route, status).inc(),
    )
    _describe_tokens(app)
    return app


async def _told(request: Request, error: Exception) -> Response:
    """An error of ours as its sentence, without the place of the folder on this machine."""
    status = next(code for kind, code in STATUS.items() if isinstance(error, kind))
    headers = {"retry-after": str(error.seconds)} if isinstance(error, QueueFull) else None
    folder = f"{request.app.state.service.pool.folder}/"
    return JSONResponse({"detail": str(error).replace(folder, "")}, status, headers)


def _describe_tokens(app: FastAPI) -> None:
    """Say in the OpenAPI document that a bearer token is needed; the gate checks it."""
    made = app.openapi()
    made.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in made["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in ("/live", "/ready") else [{"token": []}]
    app.openapi_schema = made

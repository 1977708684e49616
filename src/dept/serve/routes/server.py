"""The server itself: what it serves, whether it lives, its metrics, its dashboard."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from dept.serve import status
from dept.serve.dashboard import PARTS, POLICY
from dept.serve.metrics import CONTENT_TYPE_LATEST
from dept.serve.routes.common import TEXTS, Calling, Serving, problems
from dept.serve.schemas import Problem, ServerInfo

router = APIRouter(tags=["server"])


@router.get("/", include_in_schema=False)
@router.get("/dashboard/{name}", include_in_schema=False)
def dashboard(request: Request) -> Response:
    """The dashboard, or a part of it."""
    if request.url.path not in PARTS:
        raise HTTPException(404, "The dashboard has no such part.")
    content, kind = PARTS[request.url.path]
    return Response(content, media_type=kind, headers={"content-security-policy": POLICY})


@router.get("/live")
async def live() -> dict[str, str]:
    """Whether the process answers."""
    return {"status": "live"}


@router.get("/ready", responses={503: {"model": Problem, "description": TEXTS[503]}})
async def ready(service: Serving) -> dict[str, str]:
    """Whether it serves predictions; not before the model is loaded, nor while it stops."""
    if not service.ready:
        raise HTTPException(503, "The server is starting or stopping.")
    return {"status": "ready"}


@router.get("/metrics", response_class=Response, responses=problems())
def metrics(service: Serving) -> Response:
    """Prometheus metrics of this process."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/server", responses=problems())
def server(service: Serving, caller: Calling) -> ServerInfo:
    """The model that is served, its limits, and who asks."""
    return status.server_info(service, caller)

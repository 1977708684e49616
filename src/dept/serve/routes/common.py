"""What all routes share: the service, the caller, and the answers that any of them may give."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Request

from dept.serve.schemas import Problem
from dept.serve.service import Service
from dept.serve.tokens import Caller


def service_of(request: Request) -> Service:
    """The service behind a request."""
    service: Service = request.app.state.service
    return service


def caller_of(request: Request) -> Caller:
    """Who sends it, as the gate found out."""
    caller: Caller = request.state.caller
    return caller


Serving = Annotated[Service, Depends(service_of)]
Calling = Annotated[Caller, Depends(caller_of)]
DomainName = Annotated[str, Path(max_length=64, description="name of a domain")]
VersionNumber = Annotated[int, Path(ge=1, le=2**53, description="number of a version")]
JobId = Annotated[str, Path(max_length=64, description="id of a job")]

TEXTS = {
    400: "The request cannot be understood.",
    401: "A token is needed.",
    403: "The token has another role, or another web page has sent the request.",
    404: "There is no such thing.",
    408: "The body did not arrive, or the images were not predicted, in time.",
    409: "It contradicts the state that things are in.",
    413: "The request is too large.",
    415: "The body has another type than expected.",
    422: "A value, an image or a file is not what is needed.",
    429: "Too many requests, or the queue is full; Retry-After says when to come back.",
    503: "The server is starting or stopping.",
}


def problems(*more: int) -> dict[int | str, dict[str, Any]]:
    """Descriptions of refusals for the OpenAPI document: those of any route, and `more`."""
    codes = sorted({400, 401, 403, 408, 413, 422, 429, *more})
    return {code: {"model": Problem, "description": TEXTS[code]} for code in codes}

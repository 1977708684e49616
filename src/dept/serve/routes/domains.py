"""Domains, the versions of their adapters, and what is served."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, File, Form, UploadFile
from fastapi.responses import FileResponse

from dept.serve import status
from dept.serve.pool import NotFound, check_name, check_not_pinned
from dept.serve.routes.common import Calling, DomainName, Serving, VersionNumber, problems
from dept.serve.schemas import Activate, ChangeInfo, DomainStatus, Pin, Recent, SetOnline, VersionInfo

router = APIRouter(prefix="/v1/domains", tags=["domains"])


@router.get("", responses=problems())
def list_domains(service: Serving) -> list[DomainStatus]:
    """All domains with health, drift, gain, traffic and latency. The source model is listed once it has traffic."""
    return status.statuses(service)


@router.get("/{domain}", responses=problems(404))
def get_domain(service: Serving, domain: DomainName) -> DomainStatus:
    """One domain."""
    return status.status(service, domain)


@router.get("/{domain}/versions", responses=problems(404))
def list_versions(service: Serving, domain: DomainName) -> list[VersionInfo]:
    """All versions of its adapter with who made them, when, and their verdict. The latest first."""
    return status.versions_of(service, domain)


@router.post("/{domain}/versions", status_code=201, responses=problems(409))
def upload_version(
    service: Serving,
    caller: Calling,
    domain: DomainName,
    adapter: Annotated[UploadFile, File(description="an adapter file (safetensors)")],
    note: Annotated[str, Form(max_length=200)] = "",
    activate: Annotated[bool, Form(description="serve it at once")] = False,
) -> VersionInfo:
    """Add an adapter as the next version of a domain, which is made if it does not exist.

    The file is checked: format, checksum, backbone, classes, names, shapes, finite numbers.
    """
    check_name(domain)
    found = service.pool.index.domain(domain)
    if activate and found is not None:
        check_not_pinned(found)  # before the version is added
    with tempfile.NamedTemporaryFile(dir=service.pool.folder, prefix=".upload-") as file:
        shutil.copyfileobj(adapter.file, file)
        file.flush()
        version = service.pool.add(domain, Path(file.name), caller.name, note=note)
    if activate:
        service.pool.activate(domain, version.number, caller.name)
    return _version(service, domain, version.number)


@router.get("/{domain}/versions/{version}/adapter", response_class=FileResponse, responses=problems(404))
def download_version(service: Serving, domain: DomainName, version: VersionNumber) -> FileResponse:
    """The adapter file of a version."""
    _version(service, domain, version)  # by the index: no part of the path is taken from the request unchecked
    file = service.pool.file(domain, version)
    return FileResponse(file, media_type="application/octet-stream", filename=f"{domain}-{version}.safetensors")


@router.post("/{domain}/activate", responses=problems(404, 409))
def activate_version(service: Serving, caller: Calling, domain: DomainName, wanted: Activate) -> DomainStatus:
    """Serve a version from now on: promote. One that was judged harmful needs `force`."""
    service.pool.activate(domain, wanted.version, caller.name, force=wanted.force)
    return status.status(service, domain)


@router.post("/{domain}/rollback", responses=problems(404, 409))
def roll_back(service: Serving, caller: Calling, domain: DomainName) -> DomainStatus:
    """Serve what was served before the last activation. Repeat it to go back further, down to the source model."""
    service.pool.rollback(domain, caller.name)
    return status.status(service, domain)


@router.put("/{domain}/pin", responses=problems(404))
def pin_domain(service: Serving, caller: Calling, domain: DomainName, wanted: Pin) -> DomainStatus:
    """Keep a domain at its active version, whatever jobs and online adaptation come up with."""
    service.pool.pin(domain, wanted.pinned, caller.name)
    return status.status(service, domain)


@router.put("/{domain}/online", responses=problems(404, 409))
def set_online(service: Serving, caller: Calling, domain: DomainName, wanted: SetOnline) -> DomainStatus:
    """Adapt to the traffic: off, shadow (learn and compare, serve nothing of it) or on."""
    service.learners.switch(domain, wanted.mode, wanted.method, caller.name)
    return status.status(service, domain)


@router.get("/{domain}/history", responses=problems(404))
def get_history(service: Serving, domain: DomainName) -> list[ChangeInfo]:
    """Who did what to a domain, the latest first."""
    return status.history_of(service, domain)


@router.get("/{domain}/recent", responses=problems(404))
def get_recent(service: Serving, domain: DomainName) -> list[Recent]:
    """Some of the latest images with the prediction of the source model and that of the adapter, from memory."""
    return status.recent_of(service, domain)


def _version(service: Serving, domain: str, number: int) -> VersionInfo:
    found = service.pool.index.domain(domain)
    version = service.pool.index.version(domain, number)
    if found is None or version is None:
        raise NotFound(f"There is no version {number} of a domain {domain[:80]!r}.")
    return status.version_info(service, found, version)

"""Offline adaptations: start, watch, cancel."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, File, Form, UploadFile

from dept.errors import UsageError
from dept.serve import status
from dept.serve.routes.common import Calling, JobId, Serving, problems
from dept.serve.schemas import JobInfo

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.get("", responses=problems())
def list_jobs(service: Serving) -> list[JobInfo]:
    """All adaptations, the latest first."""
    return status.jobs_of(service)


@router.post("", status_code=202, responses=problems(409))
def start_job(
    service: Serving,
    caller: Calling,
    domain: Annotated[str, Form(max_length=64, description="made if it does not exist")],
    images: Annotated[list[UploadFile] | None, File(description="unlabelled images of the domain")] = None,
    folder: Annotated[str, Form(max_length=4096, description="or a folder that the server may read")] = "",
    method: Annotated[str, Form(max_length=64)] = "auto",
    promote: Annotated[
        Literal["never", "improved"], Form(description="whether to serve the result at once if it is judged improved")
    ] = "never",
    max_iters: Annotated[int, Form(ge=0, le=1_000_000, description="steps; 0 for the usual length")] = 0,
) -> JobInfo:
    """Adapt the source model to unlabelled images in another process. Predictions go on."""
    settings = {"max_iters": max_iters} if max_iters else {}
    wanted = {"method": method, "promote": promote, "settings": settings}
    if bool(images) == bool(folder):
        raise UsageError("Send `images`, or name a `folder` that the server may read: one of the two.")
    if folder:
        job = service.jobs.start_on_folder(domain, folder, caller.name, **wanted)
    else:
        files = ((file.filename or "", file.file.read()) for file in images or ())
        job = service.jobs.start_on_upload(domain, files, caller.name, **wanted)
    return _job(service, job)


@router.get("/{job}", responses=problems(404))
def get_job(service: Serving, job: JobId) -> JobInfo:
    """One adaptation with its progress, its verdict and the version that it made."""
    return _job(service, job)


@router.post("/{job}/cancel", responses=problems(404, 409))
def cancel_job(service: Serving, job: JobId) -> JobInfo:
    """Stop an adaptation. Nothing of it is kept."""
    service.jobs.cancel(job)
    return _job(service, job)


@router.delete("/{job}", status_code=204, responses=problems(404, 409))
def remove_job(service: Serving, job: JobId) -> None:
    """Remove the files of an adaptation that has ended, uploaded images included. Its version stays."""
    service.jobs.remove(job)


def _job(service: Serving, job: str) -> JobInfo:
    return status.job_info(service, job, *service.jobs.find(job))

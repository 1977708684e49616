"""The images of a run on which before and after disagree, and the labels that decide."""

from __future__ import annotations

from fastapi import APIRouter

from dept.serve import checks
from dept.serve.routes.common import Calling, DomainName, Serving, VersionNumber, problems
from dept.serve.schemas import Labels, Questions

router = APIRouter(prefix="/v1/domains", tags=["labels"])


@router.get("/{domain}/versions/{version}/check", responses=problems(404))
def get_check(service: Serving, domain: DomainName, version: VersionNumber) -> Questions:
    """Up to twenty images on which this version and the source model disagree. Only versions of jobs have them."""
    return checks.questions_of(service, domain, version)


@router.post("/{domain}/versions/{version}/labels", responses=problems(404))
def post_labels(
    service: Serving, caller: Calling, domain: DomainName, version: VersionNumber, given: Labels
) -> Questions:
    """Label some or all of them; returns the questions with the verdict. Earlier labels stay unless repeated."""
    return checks.label(service, domain, version, dict(given.labels), caller.name)

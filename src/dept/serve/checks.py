"""Labels of disagreements for a version that a job made: `dept check` and `dept judge` behind the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from dept.data.decoding import decode_again
from dept.errors import DataError
from dept.health.label_page import picture, sides_swapped
from dept.health.labels import Questions as Drawn
from dept.health.labels import as_csv, read_labels
from dept.io import read_json, write_atomic
from dept.runs.check import RECORD, TABLE, check_place, read_check
from dept.runs.judge import judge
from dept.serve.gains import from_labels
from dept.serve.pool import NotFound
from dept.serve.schemas import Question, Questions
from dept.serve.service import Service
from dept.serve.status import gain
from dept.serve.work import JOB, RUN


def questions_of(service: Service, domain: str, number: int) -> Questions:
    """The images to label of a version, with the labels that are there."""
    run = _run_of(service, domain, number)
    record, drawn = read_check(check_place([run]))
    drawn = _answered(run, drawn)
    root = Path(read_json(run.parent / JOB)["images"])
    swapped = sides_swapped(len(drawn.asked), record.get("seed") or 0)
    version = service.pool.index.version(domain, number)
    verdict = version.verdict if version and version.verdict.get("basis") == "labels" else {}
    return Questions(
        images=record["images"],
        disagreeing=record["disagreeing"],
        classes=list(drawn.classes),
        questions=[
            Question(
                image=one.image,
                before=one.before,
                after=one.after,
                right=one.right,
                picture=picture(decode_again(_inside(root, one.image))),
                swapped=turned,
            )
            for one, turned in zip(drawn.asked, swapped, strict=True)
        ],
        verdict=gain(verdict),
    )


def label(service: Service, domain: str, number: int, labels: Mapping[str, str], made_by: str) -> Questions:
    """Add labels, judge the run by all of them, and keep the verdict with the version."""
    run = _run_of(service, domain, number)
    _, drawn = read_check(check_place([run]))
    unknown = sorted(labels.keys() - {one.image for one in drawn.asked})
    if unknown:
        raise DataError(f"This check has no image {unknown[0][:200]!r}.")
    table = check_place([run]) / TABLE
    with FileLock(table.with_name(".labels.lock")):  # several people may label at the same time
        asked = tuple(replace(one, right=labels.get(one.image, one.right)) for one in _answered(run, drawn).asked)
        write_atomic(table, as_csv(replace(drawn, asked=asked)).encode(errors="backslashreplace"))
        verdict = from_labels(judge([run], [table]).result)
        service.pool.set_verdict(domain, number, verdict, made_by)
        service.pool.index.claim_job(run.parent.name, ("finished",), "finished", verdict=verdict)
    return questions_of(service, domain, number)


def _run_of(service: Service, domain: str, number: int) -> Path:
    """The run folder of the job that made a version."""
    version = service.pool.index.version(domain, number)
    if version is None:
        raise NotFound(f"There is no version {number} of a domain {domain[:80]!r}.")
    if not version.job:
        raise NotFound("This version was not made by an adaptation on this server, so there is nothing to label.")
    run = service.jobs.folder(version.job) / RUN
    if not (check_place([run]) / RECORD).is_file():
        raise NotFound("There is nothing to label: before and after agree on all images, or the files were removed.")
    return run


def _answered(run: Path, drawn: Drawn) -> Drawn:
    """The questions with the labels of the table."""
    labels = read_labels(check_place([run]) / TABLE, drawn)
    return replace(drawn, asked=tuple(replace(one, right=labels.get(one.image, "")) for one in drawn.asked))


def _inside(root: Path, name: str) -> Path:
    """An image of the job. Its name comes from a file of the run, which must not lead elsewhere."""
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()):
        raise DataError(f"{name[:200]!r} is not an image of this adaptation.")
    return path

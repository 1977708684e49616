"""What the API tells about domains, versions and jobs, put together from the index and the traffic."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from dept import methods
from dept._version import __version__
from dept.serve.gains import Record
from dept.serve.index import Domain, Version
from dept.serve.jobs import OPEN
from dept.serve.online import online_methods
from dept.serve.options import MB
from dept.serve.pool import SOURCE, NotFound
from dept.serve.routing import DRIFTED
from dept.serve.schemas import (
    ChangeInfo,
    DomainStatus,
    Drift,
    Gain,
    JobInfo,
    Latency,
    Limits,
    Online,
    Ranked,
    Recent,
    ServerInfo,
    VersionInfo,
)
from dept.serve.service import FORGOTTEN, Service
from dept.serve.tokens import Caller
from dept.serve.watch import Traffic
from dept.serve.work import RUN

Health = Literal["ok", "warning", "problem", "unknown"]
MANY_ERRORS = 0.05
"""share of broken images from which a domain deserves a look"""


def server_info(service: Service, caller: Caller) -> ServerInfo:
    """The model that is served, and who asks."""
    model, options = service.model, service.options
    return ServerInfo(
        version=__version__,
        arch=model.card.arch,
        classes=list(model.classes),
        image_size=model.card.preprocess.size,
        backbone_sha256=service.pool.sha,
        backbone_bytes=sum(tensor.nbytes for tensor in model.backbone.state_dict().values()),
        adapter_bytes=service.pool.bytes(),
        domains=service.pool.names(),
        routing=service.engine.has_features,
        folders=[str(folder) for folder in service.jobs.folders] if caller.role == "operate" else [],
        offline_methods=["auto", *methods.available("offline")],
        online_methods=online_methods(),
        limits=Limits(
            max_images=options.max_images,
            max_body_bytes=options.max_body_mb * MB,
            max_upload_bytes=options.max_upload_mb * MB,
            max_pixels=options.max_pixels,
            queue=options.queue,
            requests_per_second=options.rate,
        ),
        process=service.process,
        started=service.started,
        you=caller.name,
        role=caller.role,
    )


def gain(record: Record | None) -> Gain | None:
    """The change of accuracy, if anything is known of it."""
    return Gain(**record) if record else None


def statuses(service: Service, names: list[str] | None = None) -> list[DomainStatus]:
    """Domains as they are served now; all of them by default, the source model last if it has traffic."""
    traffic = service.pool.index.traffic(time.time() - FORGOTTEN)
    active, counts = service.pool.index.active()
    service.pool.sync()
    previous = service.pool.index.previous()
    domains = dict(service.pool.domains)
    if SOURCE in traffic:
        domains[SOURCE] = Domain(SOURCE)
    return [
        _status(service, domain, active.get(name), counts.get(name, 0), traffic.get(name, []), previous.get(name))
        for name, domain in domains.items()
        if names is None or name in names
    ]


def status(service: Service, name: str) -> DomainStatus:
    """One domain."""
    found = statuses(service, [name])
    if not found:
        raise NotFound(f"There is no domain {name[:80]!r}.")
    return found[0]


def _status(
    service: Service,
    domain: Domain,
    active: Version | None,
    versions: int,
    records: list[dict[str, Any]],
    previous: int | None,
) -> DomainStatus:
    traffic = Traffic.joined(records, domain.active)
    verdict = gain(active.verdict) if active else None
    live_gain = gain(traffic.gain(service.prior)) if active else None
    online = online_status(service, domain)
    health, reasons = _health(service, domain, verdict, live_gain, traffic, online)
    return DomainStatus(
        name=domain.name,
        active=domain.active,
        previous=previous,
        versions=versions,
        pinned=domain.pinned,
        health=health,
        reasons=reasons,
        verdict=verdict,
        live_gain=live_gain,
        drift=Drift(value=traffic.drift, drifted=(traffic.drift or 0) > DRIFTED, threshold=DRIFTED),
        online=online,
        images=traffic.images,
        requests=traffic.requests,
        errors=traffic.errors,
        images_per_minute=traffic.images_per_minute,
        latency=Latency(p50_ms=traffic.percentile(0.5), p99_ms=traffic.percentile(0.99)),
        last_image=traffic.last or None,
        created=domain.created,
    )


def _health(
    service: Service, domain: Domain, verdict: Gain | None, live: Gain | None, traffic: Traffic, online: Online
) -> tuple[Health, list[str]]:
    """Problems first: what an operator should do something about."""
    problems, warnings = [], []
    if domain.name in service.pool.problems:
        problems.append(f"The active version is not served: {service.pool.problems[domain.name]}")
    if verdict is not None and verdict.verdict == "harmful":
        problems.append("The active version was judged harmful.")
    if live is not None and live.verdict == "harmful":
        problems.append("On the latest traffic the adapter seems to do harm. Roll it back, or label some images.")
    if online.state == "failed":
        problems.append(f"Online adaptation has stopped: {online.detail}")
    if (traffic.drift or 0) > DRIFTED:
        warnings.append("The traffic no longer looks like the images of the domain. Adapt again.")
    if traffic.errors > MANY_ERRORS * (traffic.images + traffic.errors):
        warnings.append("More than 5 % of the images cannot be decoded.")
    if problems or warnings:
        return ("problem" if problems else "warning"), problems + warnings
    return ("ok" if domain.active and (verdict or live) else "unknown"), []


def online_status(service: Service, domain: Domain) -> Online:
    """Online adaptation of a domain."""
    found = service.learners.status(domain)
    comparison = gain(found.pop("comparison", None))
    return Online(mode=domain.online, method=domain.method, comparison=comparison, **found)


def versions_of(service: Service, name: str) -> list[VersionInfo]:
    """All versions of a domain, the latest first."""
    domain = _known(service, name)
    return [version_info(service, domain, version) for version in service.pool.index.versions(name)]


def version_info(service: Service, domain: Domain, version: Version) -> VersionInfo:
    """One version."""
    return VersionInfo(
        number=version.number,
        active=version.number == domain.active,
        sha256=version.sha256,
        bytes=version.bytes,
        method=version.method,
        images=version.images,
        job=version.job,
        verdict=gain(version.verdict),
        note=version.note,
        created=version.created,
        made_by=version.made_by,
        can_be_checked=bool(version.job) and check_folder_of(service, version.job).is_dir(),
    )


def check_folder_of(service: Service, job: str) -> Path:
    """Where the images to label of a job's run are described."""
    return service.jobs.place / job / RUN / "check"


def history_of(service: Service, name: str) -> list[ChangeInfo]:
    """Who did what to a domain, the latest first."""
    _known(service, name)
    rows = service.pool.index.history(name)
    return [
        ChangeInfo(at=row.at, made_by=row.made_by, action=row.action, version=row.version, detail=row.detail)
        for row in rows
    ]


def recent_of(service: Service, name: str) -> list[Recent]:
    """The latest images of a domain that this process has seen, the latest first."""
    if name != SOURCE:
        _known(service, name)
    classes = service.model.classes

    def ranked(found: tuple[int, float]) -> Ranked:
        return Ranked(label=classes[found[0]], probability=found[1])

    return [
        Recent(
            at=seen.at,
            name=seen.name,
            thumbnail=seen.thumbnail,
            version=seen.version,
            before=ranked(seen.before),
            after=ranked(seen.after),
            changed=seen.before[0] != seen.after[0],
        )
        for seen in reversed(list(service.watches.of(name).recent))
    ]


def _known(service: Service, name: str) -> Domain:
    domain = service.pool.index.domain(name)
    if domain is None:
        raise NotFound(f"There is no domain {name[:80]!r}.")
    return domain


def job_info(service: Service, job: str, state: str, record: dict[str, Any]) -> JobInfo:
    """A job, with its progress while it runs."""
    told = {name: value for name, value in record.items() if name in JobInfo.model_fields and name != "verdict"}
    info = JobInfo(id=job, state=state, verdict=gain(record.get("verdict")), **told)  # type: ignore[arg-type]
    if state not in OPEN:
        return info.model_copy(update={"progress": 1.0 if state == "finished" else 0.0})
    if state != "running":
        return info
    now = service.jobs.progress(job)
    return info.model_copy(
        update={
            "stage": now.stage,
            "step": now.step,
            "steps": now.steps,
            "progress": now.share,
            "eta_seconds": now.eta,
        }
    )


def jobs_of(service: Service) -> list[JobInfo]:
    """All jobs, the latest first."""
    return [job_info(service, *row) for row in service.pool.index.jobs()]

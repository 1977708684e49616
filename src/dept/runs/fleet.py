"""A fleet: one source model, adapted to every one of many sites. Each has an adapter, a verdict and a run folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from dept import methods
from dept.data.images import find_images
from dept.errors import DeptError, UsageError
from dept.health.prior import believed
from dept.io import check_folder, read_json, write_json
from dept.methods.auto import Auto
from dept.methods.base import BaseConfig
from dept.models.files import ModelFile
from dept.models.hub import CONFIG, PROCESSOR, WEIGHTS, located
from dept.models.model import Model
from dept.models.stats import load_stats, source_shares
from dept.runs.adapt import AdaptOptions
from dept.runs.auto import parse_budget
from dept.runs.folder import Listener, alone_in, silent
from dept.runs.job import make_config, with_settings
from dept.runs.runners.options import RunnerOptions
from dept.runs.runners.run import check_runner, run_jobs
from dept.runs.site_job import RECORD, Finish, Settings, SiteJob, Weights, job_key, note_error, read_record
from dept.runs.sites import Site, find_sites
from dept.runs.summary import FLEET, Summary, read_fleet


@dataclass(frozen=True)
class Plan:
    """What is the same for all sites, and where the runs go."""

    model: Path
    identity: str
    settings: Settings
    out: Path
    then: Finish | None = None
    overwrite: bool = False

    def job(self, site: Site) -> SiteJob:
        """The job of a site; a DataError if it has no images. None is decoded here."""
        own = settings_of(site, self.settings)
        key = job_key(self.identity, find_images(site.images), own)
        folder, site = self.out / site.name, replace(site, images=site.images.absolute())
        return SiteJob(site, folder, self.model, self.identity, own, key, self.then, self.overwrite)

    def record(self, sites: Sequence[Site]) -> dict[str, Any]:
        """What fleet.json says."""
        return {
            "model": str(self.model.absolute()),
            "model_sha256": self.identity,
            **self.settings.record(),
            "sites": [site.name for site in sites],
        }


def fleet(
    model: str | Path,
    sites: str | Path | Sequence[Site],
    *,
    out: str | Path,
    method: str = "auto",
    config: BaseConfig | Auto.Config | None = None,
    preset: str | None = None,
    options: AdaptOptions | None = None,
    runner: RunnerOptions | None = None,
    then: Finish | None = None,
    overwrite: bool = False,
    listener: Listener = silent,
    **settings: Any,
) -> Summary:
    """Adapt one model to many sites, each into a run folder of its own. Finished sites are skipped.

    A site that fails does not stop the others. A fleet that was interrupted goes on when it is called again.

    Args:
        sites: a folder with a sub-folder per site, a CSV file (site, images, method, prior), or sites.
        out: folder of the run folders.
        method, config, preset, options, settings: as for `adapt`. A site with a method of its own uses the settings
            that this method has too.
        runner: where the sites run; processes of this machine by default.
        then: what else is made of every run folder, in the process that has adapted it; must be picklable.
        overwrite: adapt sites again that were adapted with another model or other settings.
    """
    out, file = Path(out), located(model, WEIGHTS, beside=(CONFIG, PROCESSOR))
    found = list(sites) if isinstance(sites, Sequence) and not isinstance(sites, str) else find_sites(sites)
    _check_out(out, sites)
    options, settings = with_settings(options or AdaptOptions(), settings)
    chosen = _placed(Settings(method, _config(method, config, preset, settings), preset, options))
    source = ModelFile(file)
    _check_settings(found, chosen, source.borrow())
    plan = Plan(file.absolute(), source.identity, chosen, out.absolute(), then, overwrite)
    del source  # the workers have their own
    _check_same(plan)
    runner = runner or RunnerOptions()
    check_runner(runner)
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    with alone_in(out):
        write_json(out / FLEET, plan.record(found))
        try:
            _run(plan, found, runner, listener)
        except DeptError:
            _forget_unused(out, new=new)
            raise
    return read_fleet(out)


def settings_of(site: Site, common: Settings) -> Settings:
    """The settings of a site: those of the fleet, with its own method and prior."""
    own = common
    if site.method not in ("", common.method):
        usual = _config(common.method, None, common.preset, {})
        changed = {name: value for name, value in asdict(common.config).items() if value != asdict(usual)[name]}
        known = {one.name for one in fields(_config(site.method, None, None, {}))}
        shared = {name: value for name, value in changed.items() if name in known}
        own = Settings(site.method, _config(site.method, None, None, shared), None, common.options)
    return replace(own, options=replace(own.options, prior=site.prior)) if site.prior else own


def _placed(settings: Settings) -> Settings:
    """The settings with whole paths: a worker may run in another folder."""
    options = settings.options
    if options.stats:
        options = replace(options, stats=str(Path(options.stats).absolute()))
    if Path(options.prior).is_file():
        options = replace(options, prior=str(Path(options.prior).absolute()))
    return replace(settings, options=options)


def _config(
    method: str, config: BaseConfig | Auto.Config | None, preset: str | None, settings: dict[str, Any]
) -> BaseConfig | Auto.Config:
    """The Config of a method, as `adapt` makes it."""
    if method == Auto.name:
        return Auto.configured(config, preset, settings)
    try:
        kind = methods.get(method, "offline")
    except ValueError as error:
        raise UsageError(str(error)) from error
    assert config is None or isinstance(config, BaseConfig)
    return make_config(kind, config, preset, settings)


def _check_settings(sites: Sequence[Site], common: Settings, model: Model) -> None:
    """Refuse, before anything is written, what no site of this kind could be adapted with."""
    stats = load_stats(common.options.stats, model) if common.options.stats else None
    for site in {(site.method, site.prior): site for site in sites}.values():
        try:
            own = settings_of(site, common)
            believed(own.options.prior, model.classes, source_shares(model, stats))
            if isinstance(own.config, Auto.Config):
                parse_budget(own.config.budget)
        except DeptError as error:
            if not (site.method or site.prior):
                raise
            raise UsageError(f"The site {site.name!r}: {error}") from error


def _check_out(out: Path, sites: str | Path | Sequence[Site]) -> None:
    check_folder(out)
    if isinstance(sites, str | Path) and out.resolve().is_relative_to(Path(sites).resolve()):
        raise UsageError(f"{out} is inside {sites}, so it would become a site. Choose another `out`.")
    if (out / "config.json").exists() or (out / "result.json").exists():
        raise UsageError(f"{out} is the folder of a single run. Choose another `out`.")


def _check_same(plan: Plan) -> None:
    """A folder belongs to one model and one choice of settings, unless `overwrite` says that they may change."""
    if plan.overwrite or not (plan.out / FLEET).exists():
        return
    before, now = read_json(plan.out / FLEET), json.loads(json.dumps(plan.record([]), default=str))
    changed = [name for name in ("model_sha256", *plan.settings.record()) if before.get(name) != now[name]]
    if changed:
        raise UsageError(
            f"{plan.out} was made with another {' and another '.join(changed)}. Use `overwrite` to adapt its sites "
            "again (the adapters of now are kept as earlier versions), or choose another `out`."
        )


def _forget_unused(out: Path, *, new: bool) -> None:
    """Remove what a fleet has written whose runner refused to start: the plan, and why some sites have no images."""
    records = list(out.glob(f"*/{RECORD}"))
    if any("attempts" in read_record(file.parent) for file in records):
        return
    for file in (out / FLEET, *records):
        file.unlink()
    for folder in (file.parent for file in records):
        with suppress(OSError):  # it holds something else
            folder.rmdir()
    if new:
        shutil.rmtree(out, ignore_errors=True)


def _run(plan: Plan, sites: Sequence[Site], runner: RunnerOptions, listener: Listener) -> None:
    """Run what is not done, and tell the listener about every site."""

    def told(site: Site, *, error: str = "", stored: bool = False) -> None:
        note_error(plan.out / site.name, error)
        listener({"event": "site", "site": site.name, "total": len(sites), "error": error, "stored": stored})

    def unfinished() -> Iterator[SiteJob]:
        for site in sites:
            try:
                job = plan.job(site)
            except DeptError as error:
                told(site, error=str(error))
                continue
            if job.done():
                told(site, stored=True)
            else:
                yield job

    freight = Weights(plan.model, plan.identity, plan.settings.options.device)
    for outcome in run_jobs(unfinished(), runner, folder=plan.out, freight=freight):
        assert isinstance(outcome.job, SiteJob)
        told(outcome.job.site, error=outcome.error)

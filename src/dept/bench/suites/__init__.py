"""Registry of suites: one short file each, with the suite as data in `SUITE`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dept.errors import UsageError

if TYPE_CHECKING:
    from dept.bench.suite import Suite

# name -> module. Static, so that listing names imports nothing.
_REGISTRY = {
    "visda": "dept.bench.suites.visda",
    "visda-r101": "dept.bench.suites.visda_r101",
    "imagenet-c": "dept.bench.suites.imagenet_c",
    "domainnet": "dept.bench.suites.domainnet",
    "domainnet-multi": "dept.bench.suites.domainnet_multi",
    "data-ratio": "dept.bench.suites.data_ratio",
    "prompt-number": "dept.bench.suites.prompt_number",
    "loss-ablation": "dept.bench.suites.loss_ablation",
    "hyper-parameters": "dept.bench.suites.hyper_parameters",
    "motivation": "dept.bench.suites.motivation",
    "pacs": "dept.bench.suites.pacs",
    "office-home": "dept.bench.suites.office_home",
    "streams": "dept.bench.suites.streams",
    "streams-gradual": "dept.bench.suites.streams_gradual",
    "pacs-mini": "dept.bench.suites.pacs_mini",
    "pacs-select": "dept.bench.suites.pacs_select",
    "pacs-full": "dept.bench.suites.pacs_full",
    "pacs-multi": "dept.bench.suites.pacs_multi",
    "pacs-ratio": "dept.bench.suites.pacs_ratio",
    "pacs-losses": "dept.bench.suites.pacs_losses",
    "pacs-why": "dept.bench.suites.pacs_why",
    "digits": "dept.bench.suites.digits",
    "imagenet-c-mini": "dept.bench.suites.imagenet_c_mini",
    "imagenet-c-select": "dept.bench.suites.imagenet_c_select",
}


def available() -> list[str]:
    """Names of all suites, in the order of the paper, then ours."""
    return list(_REGISTRY)


def module(name: str) -> str:
    """The module of a suite."""
    if name not in _REGISTRY:
        raise UsageError(f"There is no suite {name!r}; `dept bench list` shows them.")
    return _REGISTRY[name]


def get(name: str) -> Suite:
    """A suite by its name."""
    suite: Suite = import_module(module(name)).SUITE
    return suite

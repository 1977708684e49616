"""Registry of suites: one short file each, with the suite as data in `SUITE`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dept.errors import UsageError

if TYPE_CHECKING:
    from dept.bench.suite import Suite

# Suite a-b is the module a_b. Names only, so that listing them imports nothing.
_NAMES = (
    *("visda", "visda-r101", "imagenet-c", "domainnet", "domainnet-r50", "domainnet-multi"),
    *("data-ratio", "prompt-number", "loss-ablation", "hyper-parameters", "motivation"),
    *("pacs", "office-home", "streams", "streams-gradual"),
    *("pacs-mini", "pacs-select", "pacs-full", "pacs-multi", "pacs-ratio", "pacs-losses", "pacs-why"),
    *("pacs-styles", "pacs-all", "pacs-few", "office-caltech"),
    *("digits", "imagenet-c-mini", "imagenet-c-select"),
)


def available() -> list[str]:
    """Names of all suites, in the order of the paper, then ours."""
    return list(_NAMES)


def module(name: str) -> str:
    """The module of a suite."""
    if name not in _NAMES:
        raise UsageError(f"There is no suite {name!r}; `dept bench list` shows them.")
    return f"dept.bench.suites.{name.replace('-', '_')}"


def get(name: str) -> Suite:
    """A suite by its name."""
    suite: Suite = import_module(module(name)).SUITE
    return suite

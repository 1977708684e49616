"""Registry of test-time methods: one file, one method."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dept.methods.base import Method

# name -> (module, class). Static, so that listing names imports nothing heavy.
_REGISTRY = {
    "adacontrast": ("dept.methods.adacontrast", "AdaContrast"),
    "cfa": ("dept.methods.cfa", "CFA"),
    "dept": ("dept.methods.dept", "DePT"),
    "eata": ("dept.methods.eata", "EATA"),
    "full": ("dept.methods.full", "Full"),
    "neo": ("dept.methods.neo", "NEO"),
    "sar": ("dept.methods.sar", "SAR"),
    "shot": ("dept.methods.shot", "SHOT"),
    "shotpp": ("dept.methods.shotpp", "SHOTPlus"),
    "source": ("dept.methods.source", "Source"),
    "tent": ("dept.methods.tent", "Tent"),
    "ttt": ("dept.methods.ttt", "TTT"),
}


def available() -> list[str]:
    """Names of all methods, sorted."""
    return sorted(_REGISTRY)


def place(name: str) -> str:
    """Where a method is, as "module:Class"; ValueError names the known ones."""
    if name not in _REGISTRY:
        raise ValueError(f"There is no method {name!r}; choose from {', '.join(available())}.")
    return ":".join(_REGISTRY[name])


def get(name: str) -> type[Method]:
    """The class of a method; ValueError names the known ones."""
    from importlib import import_module

    module, cls = place(name).split(":")
    method: type[Method] = getattr(import_module(module), cls)
    return method

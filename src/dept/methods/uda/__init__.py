"""Registry of methods that adapt with source and target images together: one file, one method."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dept.methods.uda.base import UDAMethod

# name -> (module, class). Static, so that listing names imports nothing heavy.
_REGISTRY = {
    "can": ("dept.methods.uda.can", "CAN"),
    "cdan": ("dept.methods.uda.cdan", "CDAN"),
    "dann": ("dept.methods.uda.dann", "DANN"),
    "erm": ("dept.methods.uda.erm", "ERM"),
    "mcc": ("dept.methods.uda.mcc", "MCC"),
    "swd": ("dept.methods.uda.swd", "SWD"),
}


def available() -> list[str]:
    """Names of all methods, sorted."""
    return sorted(_REGISTRY)


def place(name: str) -> str:
    """Where a method is, as "module:Class"; ValueError names the known ones."""
    if name not in _REGISTRY:
        raise ValueError(f"There is no source-and-target method {name!r}; choose from {', '.join(available())}.")
    return ":".join(_REGISTRY[name])


def get(name: str) -> type[UDAMethod]:
    """The class of a method; ValueError names the known ones."""
    from importlib import import_module

    module, cls = place(name).split(":")
    method: type[UDAMethod] = getattr(import_module(module), cls)
    return method

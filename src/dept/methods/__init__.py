"""Registry of all methods: test-time, with source data, and source training. One file is one method."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from dept.methods.declared import attribute

if TYPE_CHECKING:
    from dept.methods.base import Method

# name -> place of the class. Static, so that listing names imports nothing heavy.
_REGISTRY = {
    "aad": "dept.methods.aad:AaD",
    "adacontrast": "dept.methods.adacontrast:AdaContrast",
    "auto": "dept.methods.auto:Auto",
    "can": "dept.methods.uda.can:CAN",
    "cdan": "dept.methods.uda.cdan:CDAN",
    "cfa": "dept.methods.cfa:CFA",
    "cotta": "dept.methods.cotta:CoTTA",
    "dann": "dept.methods.uda.dann:DANN",
    "dept": "dept.methods.dept:DePT",
    "dept+": "dept.methods.dept_plus:DePTPlus",
    "deyo": "dept.methods.deyo:DeYO",
    "eata": "dept.methods.eata:EATA",
    "erm": "dept.methods.uda.erm:ERM",
    "full": "dept.methods.full:Full",
    "hdmi": "dept.methods.hdmi:HDMI",
    "lame": "dept.methods.lame:LAME",
    "mcc": "dept.methods.uda.mcc:MCC",
    "multi-source-training": "dept.methods.multi_source:MultiSourceTraining",
    "neo": "dept.methods.neo:NEO",
    "notela": "dept.methods.notela:NOTELA",
    "roid": "dept.methods.roid:ROID",
    "rotta": "dept.methods.rotta:RoTTA",
    "sar": "dept.methods.sar:SAR",
    "shot": "dept.methods.shot:SHOT",
    "shotpp": "dept.methods.shotpp:SHOTPlus",
    "source": "dept.methods.source:Source",
    "source-training": "dept.methods.source_training:SourceTraining",
    "spa": "dept.methods.spa:SPA",
    "swd": "dept.methods.uda.swd:SWD",
    "t3a": "dept.methods.t3a:T3A",
    "tent": "dept.methods.tent:Tent",
    "ttt": "dept.methods.ttt:TTT",
    "ttt++": "dept.methods.ttt_plus:TTTPlus",
}
_OWN: dict[str, type[Method]] = {}
"""classes of others, known in this process only"""
TEST_TIME = ("offline", "online")
"""settings without source images; a method of one of them runs in the other too"""
_COMMANDS = {
    "auto": ("chooses among offline methods", "dept adapt"),
    "offline": ("adapts without source images", "dept adapt"),
    "online": ("adapts without source images", "dept stream"),
    "uda": ("needs labelled source images", "dept uda"),
    "train": ("trains a source model", "dept train"),
}


class Card(NamedTuple):
    """What a method's class says of itself in literals; `methods/base.py` explains the fields."""

    title: str
    summary: str
    settings: tuple[str, ...]
    relabels: bool


def available(setting: str | None = None) -> list[str]:
    """Names of the methods meant for a setting ("offline", "online", "uda" or "train"), or of all, sorted."""
    return sorted(name for name in (*_REGISTRY, *_OWN) if setting is None or setting in card(name).settings)


def register(kind: type[Method]) -> type[Method]:
    """Make a method of your own known by its name, in this process: a decorator for a subclass of `Method`."""
    if kind.name in _REGISTRY:
        raise ValueError(f"dept itself has a method {kind.name!r}. Give yours another `name`.")
    _OWN[kind.name] = kind
    return kind


def card(name: str) -> Card:
    """What a method says of itself."""
    if name in _OWN:
        return Card(*(getattr(_OWN[name], field) for field in Card._fields))
    return _read(name)


@cache
def _read(name: str) -> Card:
    """The card of one of our methods, read from its source: importing it would import torch."""
    return Card(*(attribute(_REGISTRY[name], field) for field in Card._fields))


def place(name: str, setting: str | None = None) -> str:
    """Where a method is, as "module:Class"; ValueError if it is not known, or cannot run in the setting."""
    if name not in _REGISTRY and name not in _OWN:
        raise ValueError(f"There is no method {name!r}. Choose from {', '.join(available(setting))}.")
    if setting is not None:
        stated = card(name)
        usable = TEST_TIME if setting in TEST_TIME else (setting,)
        usable = (*usable, "auto") if setting == "offline" else usable
        if not set(usable) & set(stated.settings):
            what, command = _COMMANDS[stated.settings[0]]
            raise ValueError(f"Method {name!r} {what}. Run it with `{command}`.")
        if setting == "offline" and stated.relabels:
            raise ValueError(
                f"Method {name!r} only re-labels the batch it predicts and tunes no tensors, so there is no adapter to "
                "write. Run it with `dept stream`."
            )
    return _REGISTRY.get(name) or f"{_OWN[name].__module__}:{_OWN[name].__qualname__}"


def get(name: str, setting: str | None = None) -> type[Method]:
    """The class of a method; ValueError as for `place`."""
    from importlib import import_module

    module, cls = place(name, setting).split(":")
    if name in _OWN:
        return _OWN[name]
    method: type[Method] = getattr(import_module(module), cls)
    return method

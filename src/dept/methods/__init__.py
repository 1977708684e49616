"""Registry of all methods: test-time, with source data, and source training. One file is one method."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dept.methods.base import Method

# name -> module.Class in this package.
_REGISTRY = {
    "adacontrast": "adacontrast.AdaContrast",
    "can": "uda.can.CAN",
    "cdan": "uda.cdan.CDAN",
    "cfa": "cfa.CFA",
    "dann": "uda.dann.DANN",
    "dept": "dept.DePT",
    "eata": "eata.EATA",
    "erm": "uda.erm.ERM",
    "full": "full.Full",
    "mcc": "uda.mcc.MCC",
    "multi-source-training": "multi_source.MultiSourceTraining",
    "neo": "neo.NEO",
    "sar": "sar.SAR",
    "shot": "shot.SHOT",
    "shotpp": "shotpp.SHOTPlus",
    "source": "source.Source",
    "source-training": "source_training.SourceTraining",
    "swd": "uda.swd.SWD",
    "t3a": "t3a.T3A",
    "tent": "tent.Tent",
    "ttt": "ttt.TTT",
}
TEST_TIME = ("offline", "online")
"""settings without source images; a method of one of them runs in the other too"""
_COMMANDS = {
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
    relabels: bool = False


def available(setting: str | None = None) -> list[str]:
    """Names of the methods meant for a setting ("offline", "online", "uda" or "train"), or of all, sorted."""
    return sorted(name for name in _REGISTRY if setting is None or setting in card(name).settings)


@cache
def card(name: str) -> Card:
    """What a registered method says of itself, read from its source: importing it would import torch."""
    module, cls = _REGISTRY[name].rsplit(".", 1)
    source = Path(__file__).parent.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    body = next(node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == cls)
    # One name per statement: `title = "DePT"`, or with a type, `settings: ClassVar[…] = (…)`.
    pairs = [ast.unparse(node).partition(" = ") for node in body if isinstance(node, ast.Assign | ast.AnnAssign)]
    stated = {left.partition(":")[0]: right for left, _, right in pairs}
    return Card(**{field: ast.literal_eval(stated[field]) for field in Card._fields if field in stated})


def get(name: str, setting: str | None = None) -> type[Method]:
    """The class of a method; ValueError if it is not known, or cannot run in the setting."""
    from importlib import import_module

    if name not in _REGISTRY:
        raise ValueError(f"There is no method {name!r}; choose from {', '.join(available(setting))}.")
    if setting is not None:
        stated = card(name)
        usable = TEST_TIME if setting in TEST_TIME else (setting,)
        if not set(usable) & set(stated.settings):
            what, command = _COMMANDS[stated.settings[0]]
            raise ValueError(f"Method {name!r} {what}; run it with `{command}`.")
        if setting == "offline" and stated.relabels:
            raise ValueError(
                f"Method {name!r} only re-labels the batch it predicts and tunes no tensors, so there is no adapter to "
                "write; run it with `dept stream`."
            )
    module, cls = _REGISTRY[name].rsplit(".", 1)
    method: type[Method] = getattr(import_module(f"dept.methods.{module}"), cls)
    return method

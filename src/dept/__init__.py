"""dept: adapt an image classifier to a new domain with unlabelled images.

>>> import dept
>>> run = dept.adapt("runs/source/model.safetensors", "new_site/", out="runs/site")
>>> model = dept.load("runs/source/model.safetensors", adapter=run.adapter)
>>> dept.predict(model, "new_site/")

Importing this package is instant; torch is loaded when a name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dept._version import __version__

if TYPE_CHECKING:
    from dept import methods
    from dept.adapting import AdaptOptions, adapt
    from dept.core.adapter import Adapter
    from dept.files import load
    from dept.inference import evaluate, predict
    from dept.models import Model, create_model
    from dept.streaming import stream
    from dept.training import TrainOptions, train

_HOMES = {
    "AdaptOptions": "dept.adapting",
    "Adapter": "dept.core.adapter",
    "Model": "dept.models",
    "TrainOptions": "dept.training",
    "adapt": "dept.adapting",
    "create_model": "dept.models",
    "evaluate": "dept.inference",
    "load": "dept.files",
    "methods": "dept",
    "predict": "dept.inference",
    "stream": "dept.streaming",
    "train": "dept.training",
}

__all__ = [
    "AdaptOptions",
    "Adapter",
    "Model",
    "TrainOptions",
    "__version__",
    "adapt",
    "create_model",
    "evaluate",
    "load",
    "methods",
    "predict",
    "stream",
    "train",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'dept' has no attribute {name!r}")
    if name == "methods":
        return import_module("dept.methods")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__

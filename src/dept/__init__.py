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
    from dept.export.write import export_model
    from dept.inference import Classifier, evaluate, predict
    from dept.models.files import load
    from dept.models.model import Model, create_model
    from dept.runs.adapt import AdaptOptions, adapt
    from dept.runs.fleet import fleet
    from dept.runs.runners.options import RunnerOptions
    from dept.runs.stream import stream
    from dept.runs.stream_run import StreamOptions, stream_into
    from dept.runs.train import TrainOptions, train
    from dept.share.adapter import Adapter

_HOMES = {
    "AdaptOptions": "dept.runs.adapt",
    "Adapter": "dept.share.adapter",
    "Classifier": "dept.inference",
    "Model": "dept.models.model",
    "RunnerOptions": "dept.runs.runners.options",
    "StreamOptions": "dept.runs.stream_run",
    "TrainOptions": "dept.runs.train",
    "adapt": "dept.runs.adapt",
    "create_model": "dept.models.model",
    "evaluate": "dept.inference",
    "export_model": "dept.export.write",
    "fleet": "dept.runs.fleet",
    "load": "dept.models.files",
    "methods": "dept",
    "predict": "dept.inference",
    "stream": "dept.runs.stream",
    "stream_into": "dept.runs.stream_run",
    "train": "dept.runs.train",
}

__all__ = [
    "AdaptOptions",
    "Adapter",
    "Classifier",
    "Model",
    "RunnerOptions",
    "StreamOptions",
    "TrainOptions",
    "__version__",
    "adapt",
    "create_model",
    "evaluate",
    "export_model",
    "fleet",
    "load",
    "methods",
    "predict",
    "stream",
    "stream_into",
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

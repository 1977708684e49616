"""A model of another library as timm names it: weights, head, class names, preprocessing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from dept.data.views import Preprocess
from dept.errors import DataError, UsageError
from dept.io import read_json
from dept.models.build import Options, feature_width, shapes_of, skeleton
from dept.models.checkpoint import read_state
from dept.models.foreign import settings
from dept.models.foreign.head import Head, find_head, listed
from dept.models.foreign.names import (
    CLIP,
    TORCHVISION_VIT,
    Layout,
    Tensors,
    find_layout,
    find_prefix,
    resized_positions,
    split,
    to_timm,
)
from dept.models.foreign.shapes import recognise, vit_options
from dept.models.hub import CONFIG, PROCESSOR, WEIGHTS, located
from dept.models.schema import check_layers

UNUSED = ("mask_token",)
"""tensors of pretraining: no prediction depends on them"""
TRANSFORMERS_HEADS = ("classifier", "cls_classifier", "distillation_classifier")
"""what transformers calls its classifiers"""


@dataclass(frozen=True)
class Foreign:
    """A model of another library, with timm's names for its tensors."""

    arch: str
    options: Options
    """keywords for timm"""
    state: Tensors
    """everything but the head"""
    head: Head
    classes: tuple[str, ...] | None = None
    preprocess: Preprocess | None = None
    """None if nothing beside the weights says it"""
    layout: str = "timm"
    file: Path = Path()
    notes: tuple[str, ...] = ()
    """what the user should know"""

    def described(self) -> str:
        """The architecture with its options, and where it comes from."""
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.arch}{f' with {options}' if options else ''}, from a {self.layout} checkpoint"

    def class_names(self) -> tuple[str, ...]:
        """The names beside the weights; a UsageError if there are none."""
        if self.classes is not None or self.head.weight is None:
            return self.classes or ()
        rows = len(self.head.weight)
        hint = " or give `classes=imagenet`" if rows == 1000 else ""
        raise UsageError(
            f"The checkpoint has {rows} classes but not their names. Write them to a text file, one per line in the "
            f"order of the logits, and give it as `classes`{hint}."
        )


@dataclass
class Beside:
    """What is known about a model beside its tensors."""

    options: Options = field(default_factory=dict)
    arch: str | None = None
    classes: tuple[str, ...] | None = None
    preprocess: Preprocess | None = None
    notes: list[str] = field(default_factory=list)
    title: str = "timm"
    heads: tuple[str, ...] = ()
    """what its classifier must be called, if only then it is known what it reads"""
    unused: tuple[str, ...] = UNUSED
    """tensors that no prediction depends on"""


def read_foreign(place: str | Path, *, arch: str | None = None, options: Options | None = None) -> Foreign:
    """Read a checkpoint file, a Hugging Face folder, or a model on the hub (hf-hub:USER/REPO).

    Args:
        arch: its timm architecture, where the tensors do not show it.
        options: keywords for timm, which win over what is found.
    """
    file = weights_file(located(place, WEIGHTS, beside=(CONFIG, PROCESSOR)))
    state = read_state(file)
    if arch is not None:  # the user knows better than what lies beside the weights
        return replace(from_state(state, arch=arch, options=options), file=file)
    config, processor = (_settings(file.parent / name) for name in (CONFIG, PROCESSOR))
    return replace(from_state(state, options=options, config=config, processor=processor), file=file)


def weights_file(place: Path) -> Path:
    """The file of weights in a folder; a file is itself."""
    if not place.is_dir():
        return place
    found = [place / name for name in WEIGHTS if (place / name).is_file()]
    if found:
        return found[0]
    if any(place.glob("*.index.json")):
        raise DataError(f"The weights in {place} are split into several files. Save them as one model.safetensors.")
    raise DataError(f"{place} is a folder without {' or '.join(WEIGHTS)}. Give the file of the weights.")


def _settings(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.is_file() else None


def from_state(
    state: Tensors,
    *,
    arch: str | None = None,
    options: Options | None = None,
    config: dict[str, Any] | None = None,
    processor: dict[str, Any] | None = None,
) -> Foreign:
    """The model of a state dict and the settings beside it; see `read_foreign`."""
    if not state:
        raise DataError("The checkpoint holds no tensors.")
    layout, prefix = find_layout(state)
    if layout is not None and layout.rules:
        if arch is not None:
            raise UsageError(f"The checkpoint is a {layout.title}, which shows its architecture. Leave out `arch`.")
        inside, outside = split(state, prefix)
        inside = to_timm(layout, inside)
        with _followed():
            torchvision = layout is TORCHVISION_VIT
            beside = _torchvision(inside) if torchvision else _transformers(layout, inside, outside, config, processor)
        beside.options |= options or {}
    else:
        with _followed():
            beside = _timm(config)
            check_layers(beside.options, len(state))
        beside.options |= options or {}
        arch = arch or beside.arch
        if arch is not None:  # then its first tensor says what stands before all names, whatever the layout
            before = find_prefix(state, next(iter(shapes_of(skeleton(arch, beside.options)))))
            prefix = prefix if before is None else before
        inside, outside = split(state, prefix)
    if arch is None:
        inside = {name: tensor for name, tensor in inside.items() if name not in beside.unused}
        arch, beside.options = recognise(_shapes(inside), beside.options)
    return _parted(arch, inside, outside, beside)


@contextmanager
def _followed() -> Iterator[None]:
    """Around code that reads settings: what they lack, or have in another form, becomes a sentence."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"The settings beside the weights cannot be followed: {error}.") from error


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _timm(config: dict[str, Any] | None) -> Beside:
    """What the config.json of timm says, if there is one."""
    beside = Beside()
    if config is not None and "architecture" in config:
        beside.arch, beside.options, beside.classes, beside.preprocess = settings.timm_settings(config, beside.notes)
    return beside


def _torchvision(inside: Tensors) -> Beside:
    """How torchvision prepares images for its ViTs."""
    size = vit_options(_shapes(inside), {"global_pool": "token"})["img_size"]
    mean, std = IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
    pre = Preprocess(size, round(size * 256 / 224), "shorter", "bilinear", mean, std)
    return Beside(title="torchvision ViT", preprocess=pre)


def _transformers(
    layout: Layout, inside: Tensors, outside: Tensors, config: dict[str, Any] | None, processor: dict[str, Any] | None
) -> Beside:
    """What the files of transformers say, and what its classifiers read."""
    family = _family(layout, inside)
    beside = Beside(title=f"transformers {family}", heads=TRANSFORMERS_HEADS)
    classifies = any(set(name.split(".")) & set(TRANSFORMERS_HEADS) for name in outside)
    # SigLIP's classifier reads the mean of the patches after the last norm, CLIP's before it, all others CLS.
    average = family == "siglip" or (family == "clip" and classifies)
    beside.options = {"global_pool": "avg", "fc_norm": False} if average else {"global_pool": "token"}
    if family == "clip" and classifies:
        beside.options["final_norm"] = False
        beside.unused += ("norm.weight", "norm.bias")
    if family == "dinov2":
        _dinov2(inside, outside, beside)
    if not classifies:
        beside.unused += tuple(name for name in inside if name.startswith("pooler."))
    if config is None:
        beside.notes.append(f"There is no config.json beside the weights; the usual settings of {family} are assumed.")
        beside.options |= settings.transformers_options({"model_type": family}, guessed=True)
    else:
        beside.options |= settings.transformers_options(config)
        beside.classes = settings.transformers_classes(config, beside.notes)
        settings.check_against(config, vit_options(_shapes(inside), {"global_pool": "", **beside.options}))
    if processor is not None:
        beside.preprocess = settings.transformers_preprocess(processor, beside.notes)
    if family == "dinov2" and beside.preprocess is not None:  # the only one that transformers fits by itself
        options = vit_options(_shapes(inside), {"global_pool": "", **beside.options})
        if options["img_size"] != beside.preprocess.size:
            prefix = 0 if options["no_embed_class"] else 1
            side = beside.preprocess.size // options["patch_size"]
            inside["pos_embed"] = resized_positions(inside["pos_embed"], prefix, side)
    return beside


def _dinov2(inside: Tensors, outside: Tensors, beside: Beside) -> None:
    """DINOv2's classifier reads CLS beside the mean of the patches."""
    width = inside["norm.weight"].shape[0]
    if any(name.endswith("classifier.weight") and tensor.shape[-1] == 2 * width for name, tensor in outside.items()):
        beside.options["cls_and_mean"] = True
        if "reg_token" in inside:
            beside.notes.append(
                "The mean of the patches leaves out the registers, as newer versions of transformers do."
            )


def _family(layout: Layout, inside: Tensors) -> str:
    """The kind of model that a layout of transformers has by these tensors."""
    if layout is CLIP:
        return "clip" if "cls_token" in inside else "siglip"
    return "dinov2" if "blocks.0.ls1.gamma" in inside else "deit" if "reg_token" in inside else "vit"


def _parted(arch: str, inside: Tensors, outside: Tensors, beside: Beside) -> Foreign:
    """The model with backbone and head apart."""
    made = skeleton(arch, beside.options)
    own = shapes_of(made)
    rest = {**{name: tensor for name, tensor in inside.items() if name not in own}, **outside}
    head = find_head(rest, feature_width(made), beside.heads)
    if head.names and head.names[0] in outside and not beside.heads:
        beside.notes.append(f"The head is {head.names[0]}. It is taken to read what timm's model gives out.")
    left = [name for name in outside if name not in head.names]
    if left:
        beside.notes.append(f"Left out, as no part of the model: {listed(left)}.")
    state = {name: tensor for name, tensor in inside.items() if name not in head.names}
    known = (beside.classes, beside.preprocess, beside.title)
    return Foreign(arch, beside.options, state, head, *known, notes=tuple(beside.notes))

"""Models: a AdaptedModel with the card that says what it is, built from timm or read back from a file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import ImageNetInfo, resolve_model_data_config
from torch import Tensor, nn

from dept.core.blank import blank_prompts
from dept.core.domains import Domains
from dept.core.vit import AdaptedModel
from dept.data.views import Augment, Preprocess
from dept.errors import DataError, UsageError
from dept.io import file_sha256, tensors_hash
from dept.models.build import Options, build, feature_width, skeleton, timm_model
from dept.models.foreign.head import listed
from dept.models.foreign.read import UNUSED, Foreign, read_foreign
from dept.models.foreign.settings import timm_preprocess
from dept.models.profile import Profile

progress = logging.getLogger("dept.progress")


@dataclass(frozen=True)
class Card:
    """What must be known to rebuild a model and to feed it."""

    arch: str
    classes: tuple[str, ...]
    preprocess: Preprocess = Preprocess()
    augment: Augment = Augment()
    options: dict[str, Any] = field(default_factory=dict)
    """keywords that timm needs to build the backbone (img_size, in_chans, …)"""
    history: dict[str, Any] = field(default_factory=dict)
    """how the weights came about: method, config, protocol, metrics"""
    prior: tuple[float, ...] = ()
    """share of each class among the images that the model was trained on; empty if nobody knows"""
    profile: Profile | None = None
    """how well the model does on source images, and how well that can be told without labels"""


class Model(AdaptedModel):
    """A AdaptedModel that knows its architecture, classes and preprocessing. An ordinary nn.Module."""

    def __init__(self, backbone: nn.Module, head: nn.Linear, card: Card, *, stages: int = 0, prompts: int = 0) -> None:
        super().__init__(backbone, head, stages=stages, prompts=prompts)
        self.card = card

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the logits."""
        return self.card.classes

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.head.weight.device

    def with_prompts(self, stages: int, prompts: int, *, seed: int = 0) -> Model:
        """The same backbone and a copy of the head, with prompts that change little: tokens of a blank image."""
        if stages < 1 or prompts < 1:
            raise UsageError(
                "`stages` and `prompts` must be at least 1 for a method that tunes prompts, found "
                f"{stages} and {prompts}."
            )
        model = self.with_room_for_prompts(stages, prompts)
        assert model.prompts is not None
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            model.prompts.copy_(blank_prompts(self.backbone, stages, prompts, generator))
        return model

    def with_room_for_prompts(self, stages: int, prompts: int) -> Model:
        """The same backbone and a copy of the head, with prompts that somebody is going to write."""
        model = Model(self.backbone, deepcopy(self.head), self.card, stages=stages, prompts=prompts)
        model.fresh_head = self.fresh_head
        return model.to(self.device)


def create_model(
    arch: str | None,
    classes: int | Sequence[str],
    *,
    stages: int = 0,
    prompts: int = 0,
    pretrained: bool = False,
    weights: str | Path | None = None,
    seed: int = 0,
    **options: Any,
) -> Model:
    """Build a classifier from any timm architecture, with prompts if it is a ViT.

    Args:
        arch: a name of timm; None for that of the weights, which is recognised from their tensors.
        classes: how many, or their names in the order of the logits. The pretrained head is kept when the
            classes are the pretrained ones (the same number, or ImageNet's names); otherwise it is fresh.
        stages, prompts: M and P; 0 for the plain model.
        pretrained: timm's own weights.
        weights: a local file instead, a Hugging Face folder or hf-hub:USER/REPO (see `models.foreign`).
        options: further keywords for timm (img_size, in_chans, …).
    """
    if stages < 0 or prompts < 0:
        raise UsageError(f"`stages` and `prompts` must be at least 0, found {stages} and {prompts}.")
    names = tuple(str(n) for n in range(classes)) if isinstance(classes, int) else tuple(classes)
    with torch.random.fork_rng(devices=[]):
        found = None if weights is None else _starting_point(weights, arch, options)
        if found is not None:
            arch, options = found.arch, found.options
        if arch is None:
            raise UsageError("`arch` must be given where there are no `weights` to recognise it from.")
        torch.manual_seed(seed)
        classifier = _loaded(found) if found else timm_model(arch, options, pretrained=pretrained)
        head = _head(classifier, names, found.classes if found else None, fresh=not (pretrained or weights))
        card = Card(arch, names, _preprocess(classifier, options, found), options=dict(options))
        fresh = head is not classifier.get_classifier()
        classifier.reset_classifier(0)
        model = Model(classifier, head, card, stages=stages, prompts=prompts)
        model.fresh_head = fresh
        return model


def _starting_point(weights: str | Path, arch: str | None, options: Options) -> Foreign:
    """The weights to start from, at the image size that is asked for, or else at that of their preprocessing."""
    found = read_foreign(weights, arch=arch, options=options)
    _check_finite(found)
    if arch is None:
        progress.info("Architecture: %s", found.described())
    for note in found.notes:
        progress.info("Note: %s", note)
    pre, asked = found.preprocess, options.get("img_size")
    if pre is not None and asked not in (None, pre.size):
        pre = replace(pre, size=asked, resize=round(asked * pre.resize / pre.size))
    elif pre is not None and _fixed_size(found) not in (None, pre.size):
        found.options["img_size"] = pre.size  # as DINOv2's, whose positions are for larger images
    return replace(found, preprocess=pre)


def _fixed_size(found: Foreign) -> int | None:
    """The side of the images that the model is built for; None if it takes images of any size."""
    config = timm.get_pretrained_cfg(found.arch)
    return int(found.options.get("img_size", config.input_size[-1])) if config.fixed_input_size else None


def _loaded(found: Foreign) -> Any:
    """timm's model with the weights; timm fits positions and input channels to the options."""
    if found.options.get("cls_and_mean"):  # timm's own classifier would be too narrow
        classifier = timm_model(found.arch, found.options, state=found.state, num_classes=0)
        if found.head.weight is not None:
            classifier.head = found.head.layer()
        return classifier
    config = timm.get_pretrained_cfg(found.arch)
    names, usual = config.classifier or "head", config.num_classes
    first = names if isinstance(names, str) else names[0]
    state, rows = {**found.state, **found.head.tensors(first)}, usual
    if found.head.weight is not None:
        rows = len(found.head.weight)
    elif f"{first}.weight" not in state:
        rows = 0
    more = {} if rows == usual else {"num_classes": rows}
    return timm_model(found.arch, found.options, state=state, **more)


def from_checkpoint(found: Foreign, classes: Sequence[str]) -> Model:
    """A plain model from a user's classifier; every tensor must find its place."""
    _check_fit(found)
    _check_finite(found)
    assert found.head.weight is not None
    rows = len(found.head.weight)
    if rows != len(classes):
        raise DataError(f"The classifier has {rows} outputs, but there are {len(classes)} class names.")
    backbone = timm_model(found.arch, found.options, num_classes=0)
    backbone.load_state_dict({n: t for n, t in found.state.items() if n not in UNUSED})
    found = replace(found, preprocess=found.preprocess or _usual_preprocess(backbone, found.options))
    preprocess = _preprocess(backbone, found.options, found)
    size = _fixed_size(found)
    if size not in (None, preprocess.size):
        raise DataError(
            f"The images are prepared for {preprocess.size} x {preprocess.size} pixels, but the model's positions are "
            f"for {size} x {size}. Correct the size in preprocessor_config.json."
        )
    card = Card(found.arch, tuple(classes), preprocess, options=dict(found.options), history=_origin(found))
    return Model(backbone, found.head.layer(), card).eval()


def _origin(found: Foreign) -> dict[str, Any]:
    """Where the weights came from, for the card; a state dict that was never a file has no origin."""
    if not found.file.is_file():
        return {}
    return {"converted": {"file": found.file.name, "sha256": file_sha256(found.file), "layout": found.layout}}


def _check_fit(found: Foreign) -> None:
    """Refuse tensors that timm's architecture does not have, or has in another shape, and a model without head."""
    own = skeleton(found.arch, found.options).state_dict()
    state = {name: tensor for name, tensor in found.state.items() if name not in UNUSED}
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    shapes = [
        f"{n} is {_kind(state[n])}, not {_kind(own[n])}"
        for n in own.keys() & state.keys()
        if _kind(state[n]) != _kind(own[n])
    ]
    if found.head.weight is None and not (missing or shapes):
        raise DataError(
            f"The checkpoint cannot be converted. {found.head.missing} "
            "`dept train SOURCE` with it as `weights` trains a new head on its backbone."
        )
    odd = {"missing": missing, "unknown": unknown, "of another shape": sorted(shapes)}
    told = [f"{len(names)} {how} ({listed(names)})" for how, names in odd.items() if names]
    if told:
        other = " If it is another architecture, give that as `arch`." if found.layout == "timm" else ""
        raise DataError(f"The checkpoint does not fit {found.arch!r}. Tensors: {', '.join(told)}.{other}")


def _kind(tensor: Tensor) -> str:
    """The shape of a tensor and, if it is not the usual one, the type of its numbers."""
    return f"{tuple(tensor.shape)}" if tensor.dtype == torch.float32 else f"{tuple(tensor.shape)} of {tensor.dtype}"


def _check_finite(found: Foreign) -> None:
    tensors = {**found.state, **found.head.tensors("head")}
    broken = sorted(n for n, tensor in tensors.items() if not bool(torch.isfinite(tensor).all()))
    if broken:
        raise DataError(
            f"The checkpoint holds numbers that are not finite (in {listed(broken)}): its training has failed. "
            "Take an earlier checkpoint."
        )


def build_empty(
    card: Card,
    *,
    stages: int,
    prompts: int,
    projection: dict[str, int] | None,
    auxiliary: int | None = None,
    task: str = "",
    domains: dict[str, Any] | None = None,
) -> Model:
    """The skeleton of a stored model, to be filled by `load_state_dict`.

    Args:
        auxiliary, task: outputs of the auxiliary head and what it was taught, if it has one.
        domains: names of the source domains, `shared_prompts` and `domain_prompts` per stage, if it had several.
    """
    try:
        backbone = build(card.arch, pretrained=False, num_classes=0, **card.options)
    except (AssertionError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError(f"timm cannot build {card.arch!r} with {card.options}: {error}") from error
    head = nn.Linear(feature_width(backbone), len(card.classes))
    model = Model(backbone, head, card, stages=stages, prompts=prompts)
    if projection:
        model.add_projections(**projection)
    if auxiliary:
        model.add_auxiliary(auxiliary, task)
    if domains:
        width = model.token_width
        shared, own = (torch.zeros(stages, domains[f"{kind}_prompts"], width) for kind in ("shared", "domain"))
        names = domains["names"]
        model.domains = Domains(names, shared, [own.clone() for _ in names]).requires_grad_(False)
    return model


def fingerprint(model: AdaptedModel) -> str:
    """sha256 over names, shapes and bytes of the backbone's tensors."""
    return tensors_hash(model.backbone.state_dict())


def _head(backbone: Any, names: tuple[str, ...], known: tuple[str, ...] | None, *, fresh: bool) -> nn.Linear:
    """The pretrained head if it speaks of the same classes (`known`, or ImageNet's), else a new one."""
    old = backbone.get_classifier()
    numbered = names == tuple(str(n) for n in range(len(names)))
    same = isinstance(old, nn.Linear) and old.out_features == len(names)
    if not fresh and same and (numbered or names in (known, tuple(ImageNetInfo().label_names()))):
        assert isinstance(old, nn.Linear)
        return old
    head = nn.Linear(feature_width(backbone), len(names))
    nn.init.trunc_normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


def _preprocess(backbone: Any, options: dict[str, Any], found: Foreign | None = None) -> Preprocess:
    """As the files beside the weights say. Otherwise size and normalisation are timm's, and the resize rule is the
    authors' (256 for 224).
    """
    pre = None if found is None else found.preprocess
    if pre is None:
        config = resolve_model_data_config(backbone)
        size = int(options.get("img_size", config["input_size"][-1]))
        mean, std = tuple(config["mean"]), tuple(config["std"])
        pre = Preprocess(size=size, resize=round(size * 256 / 224), mean=mean, std=std)
    channels = options.get("in_chans", 3)
    if channels == 1 and pre.channels == 3:
        pre = replace(pre, mean=(sum(pre.mean) / 3,), std=(sum(pre.std) / 3,))
    if channels != pre.channels:
        raise UsageError(f"The model reads {channels} channels; images are prepared with {pre.channels} (1 or 3).")
    return pre


def _usual_preprocess(backbone: Any, options: Options) -> Preprocess:
    """As timm evaluates the architecture: what a checkpoint was most likely trained for if nothing says it."""
    config = resolve_model_data_config(backbone)
    size = options.get("img_size", config["input_size"][-1])
    return timm_preprocess({**config, "input_size": (3, size, size)}, [])


def with_history(model: Model, **entries: Any) -> None:
    """Add to what the model's card says about its origin."""
    model.card = replace(model.card, history={**model.card.history, **entries})

"""Models: a AdaptedModel with the card that says what it is, built from timm or read back from a file."""

from __future__ import annotations

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
from dept.io import tensors_hash
from dept.models.checkpoint import read_state
from dept.models.schema import check_options


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
    arch: str,
    classes: int | Sequence[str],
    *,
    stages: int = 0,
    prompts: int = 0,
    pretrained: bool = False,
    weights: str | Path | None = None,
    seed: int = 0,
    **options: Any,
) -> Model:
    """Build a classifier from any timm architecture, with prompts if it is a plain ViT.

    Args:
        classes: how many, or their names in the order of the logits. The pretrained head is kept when the
            classes are the pretrained ones (the same number, or ImageNet's names); otherwise it is fresh.
        stages, prompts: M and P; 0 for the plain model.
        pretrained: timm's own weights.   weights: a local file of timm's weights instead.
        options: further keywords for timm (img_size, in_chans, …).
    """
    if stages < 0 or prompts < 0:
        raise UsageError(f"`stages` and `prompts` must be at least 0, found {stages} and {prompts}.")
    names = tuple(str(n) for n in range(classes)) if isinstance(classes, int) else tuple(classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = _timm_model(arch, pretrained, weights, options)
        head = _head(classifier, names, fresh=not (pretrained or weights))
        card = Card(arch, names, _preprocess(classifier, options), options=dict(options))
        fresh = head is not classifier.get_classifier()
        classifier.reset_classifier(0)
        model = Model(classifier, head, card, stages=stages, prompts=prompts)
        model.fresh_head = fresh
        return model


def from_checkpoint(arch: str, classes: Sequence[str], state: dict[str, Tensor], **options: Any) -> Model:
    """A plain model from the state dict of a user's timm classifier; every tensor must find its place."""
    classifier = _timm_model(arch, False, None, {**options, "num_classes": len(classes)})
    own = classifier.state_dict()
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    shapes = [
        f"{n} is {tuple(state[n].shape)}, not {tuple(own[n].shape)}"
        for n in own.keys() & state.keys()
        if state[n].shape != own[n].shape
    ]
    if missing or unknown or shapes:
        raise DataError(
            f"The checkpoint does not fit {arch!r} with {len(classes)} classes. Missing: {missing[:3] or 'nothing'}; "
            f"not known: {unknown[:3] or 'nothing'}; wrong shape: {sorted(shapes)[:3] or 'nothing'}."
        )
    broken = sorted(n for n, tensor in state.items() if not bool(torch.isfinite(tensor).all()))
    if broken:
        raise DataError(
            f"The checkpoint holds numbers that are not finite, in {len(broken)} tensors (first: {broken[0]}): "
            "its training has failed. Take an earlier checkpoint."
        )
    classifier.load_state_dict(state)
    head = classifier.get_classifier()
    if not isinstance(head, nn.Linear):
        raise DataError(f"The classifier of {arch!r} is a {type(head).__name__}; dept needs a linear head.")
    card = Card(arch, tuple(classes), _preprocess(classifier, options), options=dict(options))
    classifier.reset_classifier(0)
    return Model(classifier, head, card).eval()


def build_empty(
    card: Card,
    *,
    stages: int,
    prompts: int,
    projection: dict[str, int] | None,
    auxiliary: int | None = None,
    domains: dict[str, Any] | None = None,
) -> Model:
    """The skeleton of a stored model, to be filled by `load_state_dict`.

    Args:
        domains: names of the source domains, `shared_prompts` and `domain_prompts` per stage, if it had several.
    """
    try:
        backbone = timm.create_model(card.arch, pretrained=False, num_classes=0, **card.options)
    except (AssertionError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError(f"timm cannot build {card.arch!r} with {card.options}: {error}") from error
    width = _feature_width(backbone)
    model = Model(backbone, nn.Linear(width, len(card.classes)), card, stages=stages, prompts=prompts)
    if projection:
        model.add_projections(**projection)
    if auxiliary:
        model.add_auxiliary(auxiliary)
    if domains:
        shared, own = (torch.zeros(stages, domains[f"{kind}_prompts"], width) for kind in ("shared", "domain"))
        names = domains["names"]
        model.domains = Domains(names, shared, [own.clone() for _ in names]).requires_grad_(False)
    return model


def fingerprint(model: AdaptedModel) -> str:
    """sha256 over names, shapes and bytes of the backbone's tensors."""
    return tensors_hash(model.backbone.state_dict())


def _timm_model(arch: str, pretrained: bool, weights: str | Path | None, options: dict[str, Any]) -> Any:
    try:
        check_options({name: value for name, value in options.items() if name != "num_classes"})
    except ValueError as error:
        raise UsageError(f"timm's {arch!r} cannot be built here: {error}.") from error
    # Read here and handed over as tensors: some versions of timm would unpickle the file.
    overlay = None if weights is None else {"state_dict": read_state(Path(weights)), "custom_load": False}
    try:
        return timm.create_model(
            arch, pretrained=pretrained or weights is not None, pretrained_cfg_overlay=overlay, **options
        )
    except Exception as error:  # timm and the hub raise many types; all mean "no such model here"
        if arch.split(".")[0] not in timm.list_models():
            close = timm.list_models(f"*{arch.split('_')[0]}*")[:5]
            raise UsageError(f"timm knows no architecture {arch!r}. Close names: {', '.join(close)}.") from error
        if isinstance(error, TypeError) or not (pretrained or weights):
            raise UsageError(f"timm refused to build {arch!r} with the options {options}: {error}") from error
        where = weights or "timm's hub (no network? give a local file as `weights`, or set `pretrained=False`)"
        raise DataError(f"The weights of {arch!r} could not be loaded from {where}: {error}") from error


def _head(backbone: Any, names: tuple[str, ...], *, fresh: bool) -> nn.Linear:
    """The pretrained head if it speaks of the same classes, else a new one."""
    old = backbone.get_classifier()
    numbered = names == tuple(str(n) for n in range(len(names)))
    same = isinstance(old, nn.Linear) and old.out_features == len(names)
    if not fresh and same and (numbered or list(names) == ImageNetInfo().label_names()):
        assert isinstance(old, nn.Linear)
        return old
    head = nn.Linear(_feature_width(backbone), len(names))
    nn.init.trunc_normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


def _feature_width(backbone: Any) -> int:
    return int(getattr(backbone, "head_hidden_size", None) or backbone.num_features)


def _preprocess(backbone: Any, options: dict[str, Any]) -> Preprocess:
    """Size and normalisation from timm's config of the model; the resize rule is the authors' (256 for 224)."""
    config = resolve_model_data_config(backbone)
    size = int(options.get("img_size", config["input_size"][-1]))
    mean, std = tuple(config["mean"]), tuple(config["std"])
    if options.get("in_chans", 3) == 1:
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    return Preprocess(size=size, resize=round(size * 256 / 224), mean=mean, std=std)


def with_history(model: Model, **entries: Any) -> None:
    """Add to what the model's card says about its origin."""
    model.card = replace(model.card, history={**model.card.history, **entries})

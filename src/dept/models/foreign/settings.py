"""Settings beside weights: `config.json` and `preprocessor_config.json` of transformers, `config.json` of timm.

They come from anywhere, so every value is checked for its kind and size before it is used.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from dept.data.views import MAX_SIDE, Preprocess
from dept.errors import DataError
from dept.models.build import Options
from dept.models.schema import LARGEST, check_arch, check_options

MOST_CLASSES = LARGEST


class Family(NamedTuple):
    """What transformers assumes of a kind of model where its config.json says nothing."""

    eps: float
    activation: str
    heads: int = 12


FAMILIES = {
    "vit": Family(1e-12, "gelu"),
    "deit": Family(1e-12, "gelu"),
    "dinov2": Family(1e-6, "gelu"),
    "dinov2_with_registers": Family(1e-6, "gelu"),
    "clip": Family(1e-5, "quick_gelu"),
    "clip_vision_model": Family(1e-5, "quick_gelu"),
    "siglip": Family(1e-6, "gelu_pytorch_tanh"),
    "siglip_vision_model": Family(1e-6, "gelu_pytorch_tanh"),
}
"""by `model_type`"""
ACTIVATIONS = {"gelu": None, "quick_gelu": "quick_gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh",
               "silu": "silu", "swish": "silu", "relu": "relu"}  # fmt: skip
"""transformers' name -> timm's; None is timm's own choice"""
SAID = {"hidden_size": "embed_dim", "num_hidden_layers": "depth", "patch_size": "patch_size",
        "image_size": "img_size", "num_channels": "in_chans"}  # fmt: skip
"""names in config.json -> timm's options"""
KEEPS_ASPECT = ("CLIP", "Bit")
"""image processors for which one number as size is the shorter side; for others it is both sides"""
RESAMPLING: dict[int, Literal["bilinear", "bicubic"]] = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers"""


def transformers_options(config: Mapping[str, Any], *, guessed: bool = False) -> Options:
    """What the config of transformers says and shapes do not: heads, ε of the norms, activation.

    Args:
        guessed: there is no config.json, so that nothing is known about the heads.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise DataError(f"config.json describes a model of type {kind!r}; those of {known} are read.")
    family, vision = FAMILIES[kind], config.get("vision_config", config)
    if not isinstance(vision, dict):
        raise DataError("vision_config in config.json must be an object.")
    activation = vision.get("hidden_act", family.activation)
    if activation not in ACTIVATIONS:
        raise DataError(f"config.json names the activation {activation!r}; {', '.join(ACTIVATIONS)} are supported.")
    options: Options = {} if guessed else {"num_heads": _count(vision, "num_attention_heads", family.heads)}
    if (name := ACTIVATIONS[activation]) is not None:
        options["act_layer"] = name
    eps = vision.get("layer_norm_eps", family.eps)
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise DataError(f"layer_norm_eps in config.json must be between 0 and 1, found {eps!r}.")
    return options | ({} if eps == 1e-6 else {"norm_eps": eps})  # timm's own


def check_against(config: Mapping[str, Any], found: Options) -> None:
    """Refuse a config.json that describes another model than the weights beside it, by the options of its shapes."""
    vision = config.get("vision_config", config)
    for name, option in SAID.items():
        said, value = vision.get(name, found[option]), found[option]
        if said not in (value, [value, value]):
            raise DataError(
                f"config.json says {name} = {said}, but the tensors have {value}: the files do not belong together."
            )


def transformers_classes(config: Mapping[str, Any], notes: list[str]) -> tuple[str, ...] | None:
    """Class names in the order of the logits, from id2label; None if there are none."""
    labels = config.get("id2label")
    if labels is None:
        return None
    if not isinstance(labels, dict) or not 0 < len(labels) <= MOST_CLASSES:
        raise DataError(f"id2label in config.json must be an object of up to {MOST_CLASSES:,} names.")
    names = [labels.get(str(number)) for number in range(len(labels))]
    if not all(isinstance(name, str) and name for name in names):
        raise DataError(f"id2label in config.json must name every class from 0 to {len(labels) - 1}.")
    if names[0] == "LABEL_0":
        notes.append("config.json has no class names, only LABEL_0 and so on. Give the names as `classes`.")
    return _distinct([str(name) for name in names], notes)


def _distinct(names: list[str], notes: list[str]) -> tuple[str, ...]:
    """Names without repeats: ImageNet has two cranes, and classes are told apart by their names."""
    counts = Counter(names)
    if len(counts) < len(names):
        notes.append("Several classes have the same name. Their numbers are added to tell them apart.")
    return tuple(f"{name} ({number})" if counts[name] > 1 else name for number, name in enumerate(names))


def transformers_preprocess(settings: Mapping[str, Any], notes: list[str]) -> Preprocess:
    """How transformers prepares images, from preprocessor_config.json."""
    kind = str(settings.get("image_processor_type", settings.get("feature_extractor_type", "")))
    resize, rule = _resize(settings.get("size", 224), shorter=kind.startswith(KEEPS_ASPECT))
    size = _side(settings["crop_size"]) if settings.get("do_center_crop") and "crop_size" in settings else resize
    if not settings.get("do_resize", True):
        rule, resize = "none", size
    factor = settings.get("rescale_factor", 1 / 255)
    if settings.get("do_rescale", True) is not True or not _close(factor, 1 / 255):
        raise DataError(
            "preprocessor_config.json does not divide pixels by 255, which is the only scale that is supported. "
            "Correct the file if that is a mistake."
        )
    number = settings.get("resample", 2)
    if number not in RESAMPLING:
        notes.append(f"Images are resized bicubically; Pillow's method {number!r}, as trained with, is not supported.")
    normalised = settings.get("do_normalize", True)
    mean = _numbers(settings, "image_mean", (0.5, 0.5, 0.5)) if normalised else (0.0, 0.0, 0.0)
    std = _numbers(settings, "image_std", (0.5, 0.5, 0.5)) if normalised else (1.0, 1.0, 1.0)
    return Preprocess(size, resize, rule, RESAMPLING.get(number, "bicubic"), mean, std)


def timm_settings(
    config: Mapping[str, Any], notes: list[str]
) -> tuple[str, Options, tuple[str, ...] | None, Preprocess]:
    """Architecture, options, class names and preprocessing from the config.json that timm writes to the hub."""
    options = {name: value for name, value in (config.get("model_args") or {}).items() if name != "num_classes"}
    check_arch(config["architecture"])
    check_options(options)
    # The settings have been in a part of their own since timm 0.9.
    given = config.get("pretrained_cfg", config)
    if not isinstance(given, dict):
        raise DataError("pretrained_cfg in config.json must be an object.")
    names = config.get("label_names", given.get("label_names"))
    if names is not None and not (isinstance(names, list) and 0 < len(names) <= MOST_CLASSES):
        raise DataError(f"label_names in config.json must be a list of up to {MOST_CLASSES:,} names.")
    classes = None if names is None else _distinct([str(name) for name in names], notes)
    return config["architecture"], options, classes, timm_preprocess(given, notes)


def timm_preprocess(given: Mapping[str, Any], notes: list[str]) -> Preprocess:
    """How timm prepares images for evaluation, from a `pretrained_cfg`."""
    size = _side((given.get("input_size") or [3, 224, 224])[-1])
    share = given.get("crop_pct", 0.875)
    if not isinstance(share, int | float) or not 0.01 <= share <= 1:
        raise DataError(f"crop_pct in config.json must be a share up to 1, found {share!r}.")
    mode, method = given.get("crop_mode", "center"), given.get("interpolation", "bilinear")
    if mode not in ("center", "squash") or method not in ("bilinear", "bicubic"):
        notes.append(f"Crop mode {mode!r} and interpolation {method!r} are replaced by the nearest supported ones.")
    return Preprocess(
        size,
        math.floor(size / share),
        "squash" if mode == "squash" else "shorter",
        "bilinear" if method == "bilinear" else "bicubic",
        _numbers(given, "mean", (0.485, 0.456, 0.406)),
        _numbers(given, "std", (0.229, 0.224, 0.225)),
    )


def _resize(size: Any, *, shorter: bool) -> tuple[int, Literal["squash", "shorter", "none"]]:
    """Side and rule of the resizing."""
    if isinstance(size, dict) and "shortest_edge" in size:
        return _side(size["shortest_edge"]), "shorter"
    return _side(size), "shorter" if shorter and not isinstance(size, dict) else "squash"


def _side(size: Any) -> int:
    """The side of a square, given as one number or as two equal ones."""
    if isinstance(size, dict):
        size = [size.get("height"), size.get("width")]
    sides = size if isinstance(size, list) else [size]
    first = sides[0] if sides else None
    if type(first) is not int or not 0 < first <= MAX_SIDE or any(side != first for side in sides):
        raise DataError(f"Images of size {str(size)[:60]} are not supported; squares of up to {MAX_SIDE} pixels are.")
    return first


def _count(settings: Mapping[str, Any], name: str, default: int) -> int:
    value = settings.get(name, default)
    if type(value) is not int or not 0 < value <= LARGEST:
        raise DataError(f"{name} in config.json must be a whole number from 1 to {LARGEST:,}, found {value!r}.")
    return value


def _numbers(settings: Mapping[str, Any], name: str, default: tuple[float, ...]) -> tuple[float, ...]:
    value = settings.get(name, default)
    if not isinstance(value, list | tuple) or not all(type(one) in (int, float) for one in value):
        raise DataError(f"{name} beside the weights must be a list of numbers, found {str(value)[:60]}.")
    return tuple(float(one) for one in value)


def _close(value: Any, expected: float) -> bool:
    return isinstance(value, int | float) and math.isclose(value, expected, rel_tol=1e-3)

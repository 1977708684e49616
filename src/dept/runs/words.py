"""What a finished adaptation tells its user."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from dept.core.vit import can_be_prompted
from dept.methods.base import BaseConfig, Method
from dept.metrics import LabelFree
from dept.models.model import Model
from dept.runs.loops import planned_steps

GATHERED = 0.9
"""share of the effective classes below which the predictions have gathered suspiciously (docs/results.md)"""


def describe(result: dict[str, Any], folder: Path, model: str = "MODEL") -> str:
    """A finished adaptation in a few lines, ending with the next useful commands."""
    free = result["label_free"]
    lines = [f"{result['method']}: adapted to {result['images']} images, {_tuned(result)}."]
    lines += [f"Note: {note}" for note in result["notes"]]
    if "domains" in result:
        lines.append(_domains(result["domains"]))
    lines += outcome(result)
    lines.append(
        f"Without labels: {100 * free['changed']:.1f} % of predictions changed; confidence "
        f"{free['before']['confidence']:.3f} -> {free['after']['confidence']:.3f}; effective classes "
        f"{free['before']['effective_classes']:.1f} -> {free['after']['effective_classes']:.1f}."
    )
    lines += filter(None, [beware(free)])
    adapter = folder / "adapter.safetensors"
    lines.append(f"Adapter: {adapter} ({result['adapter_bytes'] / 1024:.0f} KiB)")
    lines.append(f"Next:  {shlex.join(['dept', 'predict', model, 'IMAGES', '--adapter', str(adapter)])}")
    lines.append(f"       {shlex.join(['dept', 'report', str(folder)])}")
    return "\n".join(lines)


def beware(free: LabelFree) -> str:
    """A warning if the predictions have gathered in fewer classes than before, else nothing. Needs no labels."""
    before, after = (free[when]["effective_classes"] for when in ("before", "after"))
    if after >= GATHERED * before:
        return ""
    return (
        f"Beware: the predictions gathered in {after:.1f} effective classes, {before:.1f} before, which is how a "
        "collapse looks. Unless the other classes are really rarer here, keep the source model, or give DePT a better "
        "start with --recentre."
    )


def outcome(result: dict[str, Any]) -> list[str]:
    """What any run says: files that were skipped, and the accuracy where labels were given for scoring."""
    lines = skips(result)
    if "before" in result:
        before, after = result["before"], result["after"]
        lines.append(
            f"Accuracy {100 * before['top1']:.1f} % -> {100 * after['top1']:.1f} %, mean per class "
            f"{100 * before['mean_per_class']:.1f} % -> {100 * after['mean_per_class']:.1f} %."
        )
    return lines


def skips(result: dict[str, Any]) -> list[str]:
    """How many files do not decode, of the images that were learned from and of those that were scored."""
    counts = {"": len(result["skipped"]), "scored ": len(result.get("skipped_scored", []))}
    return [
        f"Skipped {count} {kind}files that do not decode (listed in result.json)."
        for kind, count in counts.items()
        if count
    ]


def _tuned(result: dict[str, Any]) -> str:
    """How many numbers the adapter holds, and how many moved if that was more (projection or auxiliary heads)."""
    kept, total = result["tunable_model"], result["tunable_total"]
    more = f" ({total:,} with heads that only training needs)" if total > kept else ""
    return f"{kept:,} parameters tuned{more}"


def _domains(record: dict[str, Any]) -> str:
    """Which source domains the prompts started from, and how much of each."""
    if record["rule"] == "mean":
        return f"Prompts started from the mean of the source domains {', '.join(record['names'])}."
    shares = [f"{name} {weight:.2f}" for name, weight in zip(record["names"], record["weights"], strict=True)]
    return f"Prompts started from the source domains by {record['rule']}: {', '.join(shares)}."


def few_steps(kind: type[Method], config: BaseConfig, images: int) -> list[str]:
    """A note if few images make so few steps that the method would probably get further with more."""
    steps = planned_steps(config, images)
    if steps >= kind.enough_steps:
        return []
    return [
        f"{config.epochs} epochs of {images} images are {steps} steps, few for {kind.name}: it may get further with "
        f"--max-iters {kind.enough_steps}."
    ]


def adapt_command(model: Model, file: Path) -> str:
    """The command that adapts this model to new images; DePT is the default, where prompts can enter."""
    method = "" if can_be_prompted(model.backbone) else " --method tent"
    return f"dept adapt {shlex.quote(str(file))} NEW_IMAGES --out runs/site{method}"

"""What a run tells its user: notes before it, the outcome after it, and the next useful commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dept.methods.base import BaseConfig, Method
from dept.metrics import LabelFree
from dept.runs.loops import planned_steps
from dept.runs.read import REJECTED
from dept.runs.record import Result

COLLAPSED = 0.9
"""share of the effective classes below which predictions count as collapsed (docs/results.md)"""


def flag(name: str) -> str:
    """A parameter as the command line spells it, for commands that are printed."""
    return "-" * 2 + name.replace("_", "-")


def adapted(result: Result, folder: Path, file: Path, model: str) -> str:
    """A finished adaptation in a few lines, ending with the next commands."""
    free, adapter = result["label_free"], str(file)
    lines = [expected_line(result["expected"])] if "expected" in result else []
    lines += accuracy_line(result.get("expected", {}))
    lines.append(f"{result['method']}: adapted to {result['images']} images, {_tuned(result)}.")
    if "kept_steps" in result:
        source = "" if result["kept_steps"] else ", which is the source model: no later one looked better"
        lines.append(f"The state after {result['kept_steps']} of {result['steps']} steps was kept{source}.")
    lines += choice_lines(result["auto"]) if "auto" in result else []
    lines += [f"Note: {note}" for note in result["notes"]]
    if "domains" in result:
        lines.append(_domains(result["domains"]))
    lines += [*_outcome(result), *_without_labels(free, confidence=True)]
    lines.append(f"Adapter: {adapter} ({result['adapter_bytes'] / 1024:.0f} KiB)")
    if file.name == REJECTED:
        lines.append(f"It was rejected. {flag('accept')} keeps it anyway. {flag('method')} auto tries others.")
    used = [] if file.name == REJECTED else [flag("adapter"), adapter]
    lines.append(f"Next:  {shlex.join(['dept', 'predict', model, 'IMAGES', *used])}")
    if free["changed"]:
        lines.append(f"       {shlex.join(['dept', 'check', str(folder)])}   (did it help? 30 labels tell)")
    lines.append(f"       {shlex.join(['dept', 'report', str(folder)])}")
    return "\n".join(lines)


NO_CARD = (
    "The model file does not say how frequent its classes were in the source, so equal shares are assumed. "
    f"`dept stats MODEL SOURCE {flag('card')}` adds that to the file, and how far its confidence can be trusted."
)
ASSUMED = {
    "source": "if class shares are as in the source",
    "uniform": "if all classes are equally frequent",
    "file": "with the class shares that were given",
}


def expected_line(found: Mapping[str, Any]) -> str:
    """The verdict without labels, and the gain it rests on."""
    if found["shares"] == "unknown":
        return "Uncertain: class shares seem to be unlike the source's, and then only labels tell (`dept check`)."
    if found["low"] == found["high"]:
        return "No prediction changed."
    low, high = (f"{100 * found[end]:+.1f}" for end in ("low", "high"))
    span = f"accuracy changed by {low} to {high} points, {ASSUMED[found['shares']]}"
    if found["verdict"] == "improved":
        return f"Improved, as far as can be told without labels: {span}."
    if found["verdict"] == "harmful":
        return f"Harmful, as far as can be told without labels: {span}. Keep the model as it was."
    return f"Uncertain: {span}. `dept check` tells more with 30 labels."


def accuracy_line(found: Mapping[str, Any]) -> list[str]:
    """A wide interval for the accuracy before the run, if the source model's profile allows one."""
    if not found.get("accuracy"):
        return []
    low, high = (100 * end for end in found["accuracy"])
    return [f"The source model is right on {low:.0f} to {high:.0f} % of these images: a rough estimate without labels."]


def unknown_source(file: Path) -> list[str]:
    """What is missing in a converted model, and the command that measures it."""
    return [
        f"       {shlex.join(['dept', 'stats', str(file), 'SOURCE', flag('card')])}",
        "Not known without labelled source images: class shares (`dept adapt` then assumes equally frequent classes), "
        "how far the confidence can be trusted, and feature statistics (cfa needs them, eata can use them). "
        "`dept stats` measures all three.",
    ]


def choice_lines(record: Mapping[str, Any]) -> list[str]:
    """Which candidates method auto had, how they scored without labels, and why one was kept."""
    rows = [
        f"  {one['name']}: {100 * one['distance']:.1f} % away from the expected class shares, "
        f"{100 * one['changed']:.1f} % of predictions changed."
        for one in record["candidates"]
    ]
    return [f"auto kept {record['kept']}: {record['why']}", *rows]


def adapted_with_source(result: Result, file: Path) -> str:
    """A finished run with source data in a few lines, ending with the next command."""
    lines = [
        f"{result['method']}: {result['steps']} steps on {result['source_images']} source and {result['images']} "
        f"target images, {result['tunable_model']:,} parameters tuned ({result['tunable_total']:,} with the method's "
        "own)."
    ]
    lines += [*_outcome(result), *_without_labels(result["label_free"], confidence=False)]
    return "\n".join([*lines, f"Model: {file}", f"Next:  dept predict {shlex.quote(str(file))} IMAGES"])


def trained(result: Result, file: Path) -> str:
    """A finished training in a few lines, ending with the next command."""
    lines = [
        f"Trained on {result['images']} images ({result['held_out']} held out). Best epoch "
        f"{result['best_epoch'] + 1} of {result['epochs']}, held-out accuracy {100 * result['accuracy']:.1f} %.",
        *_skips(result),
    ]
    for row in result.get("domains", []):
        mean = row.get("accuracy_mean_prompts")
        with_mean = "" if mean is None else f" with its own prompts, {100 * mean:.1f} % with the mean of all"
        lines.append(f"  {row['name']}: {row['images']} images, held-out {100 * row['accuracy']:.1f} %{with_mean}")
    return "\n".join([*lines, f"Model: {file}", f"Next:  {adapt_command(file)}"])


def adapt_command(file: Path) -> str:
    """The command that adapts a model to new images."""
    return shlex.join(["dept", "adapt", str(file), "NEW_IMAGES", flag("out"), "runs/site"])


def streamed(result: Result, folder: Path) -> str:
    """A stream that has ended, in a few lines."""
    guard = result.get("guard")
    counts = f"{result['images']} images, {guard['updates'] if guard else result['steps']} updates"
    lines = [f"{counts}. Predictions: {folder / 'predictions.jsonl'}, adapter: {folder / 'adapter.safetensors'}."]
    if guard and (guard["not_learned_from"] or guard["alarms"]):
        lines.append(
            f"Guard: {guard['not_learned_from']} batches were not learned from, {guard['alarms']} alarms. The reasons "
            f"are in {folder / 'events.jsonl'}."
        )
    return "\n".join([*lines, *_skips(result)])


def judged_lines(found: Mapping[str, Any], sides: tuple[str, str] = ("before", "after")) -> list[str]:
    """What labels say of a run (see `judge`): verdict and gain, and the labels that it rests on."""
    low, high = (100 * end for end in found["ci95"])
    first, second = sides
    labelled = found["right_after"] + found["right_before"] + found["neither"]
    chance = f"= {found['p_value']:.2g}" if found["p_value"] >= 0.001 else "< 0.001"
    better = {"improved": "The second run is better", "harmful": "The first run is better"} if first == "first" else {}
    return [
        f"{better.get(found['verdict'], found['verdict'].capitalize())}. Gain {100 * found['gain']:+.1f} points in "
        f"accuracy on these {found['images']:,} images (exact 95 % interval {low:+.1f} to {high:+.1f}).",
        f"Labels of {labelled} of the {found['disagreeing']:,} images on which predictions differ: {second} is right "
        f"on {found['right_after']}, {first} on {found['right_before']}, neither on {found['neither']} "
        f"(exact sign test, p {chance}).",
    ]


def long_enough(kind: type[Method], config: BaseConfig, images: int, *, fit: bool) -> tuple[BaseConfig, list[str]]:
    """The config with the steps that the method usually needs if its default length gives fewer, and a note on that.

    Args:
        fit: whether to change the length; otherwise the note says what to change.
    """
    steps, enough = planned_steps(config, images), kind.enough_steps
    if steps >= enough:
        return config, []
    if fit:
        note = f"{enough:,} steps, because {config.epochs} epochs of {images} images are only {steps}."
        return replace(config, max_iters=enough), [note]
    short = f"Only {steps} steps ({config.epochs} epochs × {images} images). {kind.name} usually needs about "
    return config, [f"{short}{enough:,}: try `max_iters` {enough}."]


def collapse_warning(free: LabelFree) -> str:
    """A warning if the predictions spread over fewer classes than before, else nothing. Needs no labels."""
    before, after = free["before"]["effective_classes"], free["after"]["effective_classes"]
    if after >= COLLAPSED * before:
        return ""
    return (
        f"Warning: predictions collapsed from {before:.1f} to {after:.1f} effective classes. Unless the other classes "
        "really are rarer here, keep the source model, or give DePT a better start with `recentre`."
    )


def _outcome(result: Result) -> list[str]:
    """Files that were skipped, and the accuracy where labels were given for scoring."""
    if "before" not in result:
        return _skips(result)
    before, after = result["before"], result["after"]
    return [
        *_skips(result),
        f"Accuracy {100 * before['top1']:.1f} % -> {100 * after['top1']:.1f} %, mean per class "
        f"{100 * before['mean_per_class']:.1f} % -> {100 * after['mean_per_class']:.1f} %.",
    ]


def _without_labels(free: LabelFree, *, confidence: bool) -> list[str]:
    """How the predictions changed, and a warning if they collapsed."""
    before, after = free["before"], free["after"]
    sure = f" confidence {before['confidence']:.3f} -> {after['confidence']:.3f};" if confidence else ""
    text = (
        f"Without labels: {100 * free['changed']:.1f} % of predictions changed;{sure} effective classes "
        f"{before['effective_classes']:.1f} -> {after['effective_classes']:.1f}."
    )
    return [line for line in (text, collapse_warning(free)) if line]


def _skips(result: Result) -> list[str]:
    """How many files cannot be read, of the images that were learned from and of those that were scored."""
    counts = {"": len(result["skipped"]), "scored ": len(result.get("skipped_scored", []))}
    return [
        f"Skipped {count} {kind}files that cannot be read (listed in result.json)."
        for kind, count in counts.items()
        if count
    ]


def _tuned(result: Result) -> str:
    """How many parameters the adapter holds, and how many were trained if that is more (projection heads)."""
    kept, total = result["tunable_model"], result["tunable_total"]
    more = f" ({total:,} with heads that only training needs)" if total > kept else ""
    return f"{kept:,} parameters tuned{more}"


def _domains(record: dict[str, Any]) -> str:
    """Which source domains the prompts started from, and how much of each."""
    if record["rule"] == "mean":
        return f"Prompts started from the mean of the source domains {', '.join(record['names'])}."
    shares = [f"{name} {weight:.2f}" for name, weight in zip(record["names"], record["weights"], strict=True)]
    return f"Prompts started from the source domains by {record['rule']}: {', '.join(shares)}."

"""The first thing to read: one plain sentence, with what is known and what is not."""

from __future__ import annotations

from dept.metrics import LabelFree, label_free
from dept.report.blocks import Tile, Tone
from dept.report.measure import Measured
from dept.report.summaries import Gain, gain
from dept.report.svg import signed
from dept.runs.read import RunFiles, progress
from dept.runs.record import Result
from dept.runs.words import choice_lines, collapse_warning, expected_line, judged_lines

DIFFERS = 0.005  # accuracy by which the report may differ from the run's own score before it says so
JUDGED: dict[str, Tone] = {"improved": "good", "harmful": "bad"}
UNKNOWN = "Whether accuracy rose is unknown, because no labels were given."


def measured_gain(measured: Measured | None) -> Gain | None:
    """The paired gain on the report's own images, if labels are known."""
    if measured is None or measured.before is None or measured.labels is None:
        return None
    return gain(measured.before.predicted, measured.after.predicted, measured.labels)


def measured_label_free(run: RunFiles, measured: Measured | None) -> LabelFree | None:
    """What is known without labels, on the report's images or else as the run recorded it."""
    if measured is not None and measured.before is not None:
        return label_free(measured.before.probabilities, measured.after.probabilities, measured.classes)
    return run.result.get("label_free")


def verdict(run: RunFiles, measured: Measured | None) -> tuple[str, Tone]:
    """The sentence and its tone."""
    result = run.result
    if run.kind == "train" and result:
        return (
            f"Source training reached {100 * result['accuracy']:.1f} % on {result['held_out']:,} held-out source "
            f"images in epoch {result['best_epoch'] + 1} of {result['epochs']}, after training on "
            f"{result['images']:,} images. This says nothing yet about other domains."
        ), ""
    found, free = measured_gain(measured), measured_label_free(run, measured)
    if found is not None:
        return _paired(found, free)
    if run.judged:
        return " ".join(judged_lines(run.judged)), JUDGED.get(run.judged["verdict"], "unclear")
    if "before" in result:
        return _recorded(result)
    if free is not None:
        return _unlabelled(run, free, len(measured.images) if measured is not None else result["images"])
    if run.kind == "stream":
        seen = [row["confidence"] for row in run.predictions if "label" in row]
        mean = 100 * sum(seen) / max(1, len(seen))
        return f"{UNKNOWN} The stream predicted {len(seen):,} images with a mean confidence of {mean:.1f} %.", "unclear"
    done, planned = progress(run.events)
    return f"The run is not finished: {done:,} of {planned:,} steps are done.", "unclear"


def _paired(found: Gain, free: LabelFree | None) -> tuple[str, Tone]:
    interval = f"paired 95 % interval {signed(100 * found.low, 1)} to {signed(100 * found.high, 1)}"
    numbers = (
        f"from {100 * found.before:.1f} % to {100 * found.after:.1f} % on {found.count:,} labelled images: "
        f"{signed(100 * found.difference, 1)} points ({interval})."
    )
    if found.low > 0:
        return f"Adaptation helped. Accuracy rose {numbers}", "good"
    if found.high < 0:
        return f"Adaptation hurt. Accuracy fell {numbers}", "bad"
    return _warned(f"No clear effect. Accuracy went {numbers}", free)


def _recorded(result: Result) -> tuple[str, Tone]:
    """The run's own scores only: without its predictions there is no paired interval."""
    before, after = result["before"], result["after"]
    low, high = (100 * value for value in after["ci95"])
    change = 100 * (after["top1"] - before["top1"])
    return (
        f"The run recorded an accuracy of {100 * before['top1']:.1f} % before and {100 * after['top1']:.1f} % after "
        f"(95 % interval {low:.1f} to {high:.1f}) on {after['n']:,} labelled images: {signed(change, 1)} points. The "
        "paired interval of the gain needs the labelled images."
    ), ("good" if before["top1"] < after["ci95"][0] else "bad" if before["top1"] > after["ci95"][1] else "unclear")


def _unlabelled(run: RunFiles, free: LabelFree, count: int) -> tuple[str, Tone]:
    before, after = free["before"], free["after"]
    expected = run.result.get("expected")
    begin = UNKNOWN if expected is None else expected_line(expected)
    sentence = (
        f"{begin} {100 * free['changed']:.1f} % of {count:,} predictions changed. Mean confidence went from "
        f"{100 * before['confidence']:.1f} % to {100 * after['confidence']:.1f} %, and mean entropy from "
        f"{before['entropy']:.2f} to {after['entropy']:.2f} nats."
    )
    tone = JUDGED.get(expected["verdict"]) if expected else None
    return (sentence, tone) if tone else _warned(sentence, free)


def _warned(sentence: str, free: LabelFree | None) -> tuple[str, Tone]:
    """Labels do not decide, so a collapse of the predicted classes does."""
    warning = collapse_warning(free) if free else ""
    return (f"{sentence} {warning}", "bad") if warning else (sentence, "unclear")


def remarks(run: RunFiles, measured: Measured | None, missing: str) -> list[str]:
    """What is needed to read the numbers: sample, image list, disagreement with the run's own scores, notes."""
    said = [f"Measured without the images. {missing}"] if missing else []
    if measured is not None:
        count = len(measured.images)
        if count < measured.found:
            said.append(f"Measured on {count:,} of {measured.found:,} images, sampled with a fixed seed.")
        if measured.same_list and run.kind == "train":
            said.append("Measured on the held-out source images.")
        if measured.same_list is False and run.kind in ("adapt", "uda"):
            said.append("These are not exactly the images that the run adapted to: the list of files differs.")
    found = measured_gain(measured)
    if found is not None and "before" in run.result:
        before, after, count = run.result["before"]["top1"], run.result["after"]["top1"], run.result["after"]["n"]
        if count != found.count or max(abs(before - found.before), abs(after - found.after)) >= DIFFERS:
            scores = f"{100 * before:.1f} % before and {100 * after:.1f} % after, on {count:,} images"
            said.append(f"The run itself recorded {scores}.")
    if "auto" in run.result:
        said.append(" ".join(line.strip() for line in choice_lines(run.result["auto"])))
    if run.result.get("skipped"):
        said.append(f"{len(run.result['skipped'])} files could not be read and were skipped.")
    return said + [str(note) for note in run.result.get("notes", [])]


def tiles(run: RunFiles, measured: Measured | None) -> list[Tile]:
    """The key numbers below the sentence."""
    made: list[Tile] = []
    found, free = measured_gain(measured), measured_label_free(run, measured)
    if found is not None:
        tone: Tone = "good" if found.low > 0 else "bad" if found.high < 0 else "unclear"
        made.append(Tile("accuracy before", f"{100 * found.before:.1f} %"))
        made.append(Tile("accuracy after", f"{100 * found.after:.1f} %", tone=tone))
        made.append(Tile("gain, points", signed(100 * found.difference, 1), "paired, on the same images", tone))
    elif run.judged:
        words, tone = f"by labels: {run.judged['verdict']}", JUDGED.get(run.judged["verdict"], "unclear")
        made.append(Tile("gain, points", signed(100 * run.judged["gain"], 1), words, tone))
    elif "before" in run.result:
        made.append(Tile("accuracy before", f"{100 * run.result['before']['top1']:.1f} %", "as recorded"))
        made.append(Tile("accuracy after", f"{100 * run.result['after']['top1']:.1f} %", "as recorded"))
    if free is not None:
        before, after = free["before"], free["after"]
        made.append(Tile("predictions changed", f"{100 * free['changed']:.1f} %"))
        old = f"before {100 * before['confidence']:.1f} %"
        made.append(Tile("mean confidence", f"{100 * after['confidence']:.1f} %", old))
        made.append(Tile("mean entropy, nats", f"{after['entropy']:.2f}", f"before {before['entropy']:.2f}"))
        if found is None:
            old = f"before {before['effective_classes']:.1f}"
            made.append(Tile("effective classes", f"{after['effective_classes']:.1f}", old))
    return made

"""The page of one run: every section, or the reason why it is empty."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dept import methods
from dept._version import __version__
from dept.io import file_sha256
from dept.metrics import expected_calibration_error
from dept.models.files import ModelFile
from dept.report import charts, summaries
from dept.report.blocks import Figure, Fold, Page, Section, Tile
from dept.report.changed_labels import changed_section
from dept.report.command import reproduce
from dept.report.confusion_chart import confusion_chart
from dept.report.feature_map import features_section
from dept.report.measure import SAMPLE_SEED, Measured, ReportOptions, measure
from dept.report.prompt_attention import attention_section
from dept.report.verdict import remarks, tiles, verdict
from dept.runs.inputs import Missing
from dept.runs.read import Cost, RunFiles, cost, loss_curves, read_run, score_curves
from dept.runs.record import shown

_TERMS = {
    "loss": "Total loss",
    "pseudo_label": "Pseudo-label",
    "cls": "CLS distillation",
    "prompt": "Prompt consistency",
}


def run_page(
    folder: Path,
    options: ReportOptions,
    opening: Callable[[Measured], Sequence[Section]] | None = None,
    source: ModelFile | None = None,
) -> Page:
    """Read the run, and measure what can be measured. `opening` makes sections that come before the others."""
    run = read_run(folder)
    measured, missing = None, ""
    try:
        measured = measure(run, options, source)
    except Missing as reason:
        missing = str(reason)
    sentence, tone = verdict(run, measured)
    command, notes = reproduce(run)
    first = opening(measured) if opening and measured else ()
    return Page(
        title=_title(run, options),
        subtitle=_subtitle(run),
        verdict=sentence,
        tone=tone,
        remarks=tuple(remarks(run, measured, missing)),
        tiles=tuple(tiles(run, measured)),
        sections=(*first, *_sections(run, measured, missing, options)),
        command=command,
        command_notes=tuple(notes),
        folds=tuple(_folds(run, measured, options)),
    )


def _title(run: RunFiles, options: ReportOptions) -> str:
    name = methods.card(run.method).title if run.method in methods.available() else run.method
    target = options.score or options.images or run.inputs.get("score") or run.inputs.get("images")
    if run.kind == "train":
        return f"Source training: {run.protocol.get('arch', run.folder.name)}"
    return f"{name} on {Path(target).name}" if target else f"{name}: {run.folder.resolve().name}"


def _subtitle(run: RunFiles) -> str:
    """Architecture, prompts, images and date, as far as they are known."""
    protocol, parts = run.protocol, []
    if "arch" in protocol:
        parts.append(str(protocol["arch"]))
    if protocol.get("stages"):
        parts.append(f"{protocol['stages']} stages × {protocol['prompts']} prompts")
    if "images" in run.result:
        parts.append(f"{run.result['images']:,} {'training' if run.kind == 'train' else 'target'} images")
    if run.events and "time" in run.events[-1]:
        day = datetime.fromtimestamp(float(run.events[-1]["time"]), tz=UTC)
        parts.append(f"{day:%Y-%m-%d}")
    return " · ".join(parts)


def _sections(run: RunFiles, measured: Measured | None, missing: str, options: ReportOptions) -> list[Section]:
    found = [_stream(run)] if run.kind == "stream" else [_curves(run)]
    found += [_calibration(measured, missing), _classes(run, measured, missing)]
    found += [changed_section(measured, missing), features_section(measured, missing, options.projection)]
    found += [attention_section(measured, missing), _cost(cost(run), run)]
    if run.kind == "train":  # nothing was adapted: there is no change to show
        found = [section for section in found if section.key != "changed"]
    return found


def _curves(run: RunFiles) -> Section:
    key, title = "curves", "Loss and accuracy"
    scores, terms, scored = score_curves(run.events), loss_curves(run.events), ""
    figures = []
    if scores:
        # A read-out that exists only at the end makes no line. But a run that has just begun has only single points.
        lasting = [curve for curve in scores if len(curve.steps) > 1] or scores
        figures.append(Figure(charts.accuracy_chart(lasting), "Accuracy"))
        if run.kind != "train" and all(len(curve.steps) <= 2 for curve in lasting):
            scored = " Accuracy was evaluated only before and after. `eval_every` adds points in between."
    for curve in terms:
        name = _TERMS.get(curve.name, curve.name.replace("_", " ").capitalize())
        figures.append(Figure(charts.term_chart(name, [s + 1 for s in curve.steps], curve.values), name))
    if not figures:
        return Section(key, title, missing="The run has no recorded steps.")
    lead = "Every term of the loss, multiplied by its weight. The bold line is a running mean."
    return Section(key, title, (lead if terms else "") + scored, tuple(figures))


def _stream(run: RunFiles) -> Section:
    """Confidence of the predictions in order of arrival."""
    good = [row for row in run.predictions if "label" in row]
    if not good:
        return Section("curves", "Confidence over the stream", missing="No image was predicted.")
    values = [float(row["confidence"]) for row in good]
    broken = len(run.predictions) - len(good)
    lead = f"{len(good):,} images in order of arrival." + (f" {broken} could not be decoded." if broken else "")
    if guard := run.result.get("guard"):
        lead += f" Guard: {guard['not_learned_from']:,} batches were not learned from, {guard['alarms']} alarms."
    chart = charts.term_chart("confidence", range(len(values)), values, unit="image")
    figure = Figure(chart, "Confidence", "Confidence of every prediction. The bold line is a running mean.")
    return Section("curves", "Confidence over the stream", lead, (figure,))


def _calibration(measured: Measured | None, missing: str) -> Section:
    key, title = "confidence", "Confidence"
    if measured is None:
        return Section(key, title, missing=missing)
    before, after, labels = measured.before, measured.after, measured.labels
    old = summaries.confidence_shares(before.confidence) if before else None
    chart = charts.confidence_chart(old, summaries.confidence_shares(after.confidence))
    figures = [Figure(chart, "Histogram", "Share of the images by confidence.", legend=before is not None)]
    if labels is None:
        lead = "Most methods raise confidence, whether right or wrong. Calibration can only be measured with labels."
        return Section(key, title, lead, tuple(figures))
    error = 100 * expected_calibration_error(after.probabilities, labels)
    caption = f"The dashed line is perfect calibration. Expected calibration error: {error:.1f} %"
    if before:
        caption += f" (before: {100 * expected_calibration_error(before.probabilities, labels):.1f} %)"
    bins = summaries.reliability(before.probabilities, labels) if before else None
    chart = charts.reliability_chart(bins, summaries.reliability(after.probabilities, labels))
    words = f"{caption}. Larger dots stand for more images."
    figures.append(Figure(chart, "Calibration", words, legend=before is not None))
    return Section(key, title, figures=tuple(figures))


def _classes(run: RunFiles, measured: Measured | None, missing: str) -> Section:
    """Bars per class and, beside them, which class is taken for which."""
    key, title = "classes", "Classes"
    rows: list[summaries.ClassRow] = []
    what = "Accuracy per class"
    if measured is not None:
        old, new = measured.before.predicted if measured.before else None, measured.after.predicted
        rows = summaries.class_rows(old, new, measured.labels, measured.classes)
        what = what if measured.labels is not None else "Share of predictions per class"
    elif "before" in run.result:
        before, after = run.result["before"]["per_class"], run.result["after"]["per_class"]
        rows = [summaries.ClassRow(name, None, before.get(name), value) for name, value in after.items()]
        what += ", as recorded"
    if not rows:
        return Section(key, title, missing=missing or "The run has no labels and no recorded predictions.")
    few = summaries.shortened(rows)
    legend = any(row.before is not None for row in few)
    caption = "Right column: change in points." if legend else ""
    if len(few) < len(rows):
        caption = f"The {len(few)} of {len(rows)} classes that changed most. {caption}"
    figures = [Figure(charts.class_bars(few, what), what, caption, legend=legend)]
    if measured is not None and measured.before is not None:
        figures += _confusion(measured)
    return Section(key, title, figures=tuple(figures))


def _confusion(measured: Measured) -> list[Figure]:
    """Change of the confusion matrix, or, without labels, moves between classes. Empty if no prediction changed."""
    assert measured.before is not None
    old, new, classes = measured.before.predicted, measured.after.predicted, measured.classes
    if measured.labels is None:
        title, matrix = "Moves between classes", summaries.confusion(old, new, len(classes)).fill_diagonal_(0)
        caption = "Images by their label before (rows) and after (columns). Images that kept their label are left out."
    else:
        after, before = (summaries.confusion(measured.labels, one, len(classes)) for one in (new, old))
        title, matrix = "Change of the confusion matrix", after - before
        caption = (
            "Confusion matrix after minus before, in images. Rows are true classes, columns are predicted classes. "
            "Green is better (more on the diagonal, fewer elsewhere), red is worse."
        )
    if not bool(matrix.any()):
        return []
    chosen = summaries.busiest(matrix)
    if len(chosen) < len(classes):
        caption += f" Shown: the {len(chosen)} of {len(classes)} classes with the most changes."
    names, part = [classes[i] for i in chosen], matrix[chosen][:, chosen].tolist()
    totals = None if measured.labels is None else [int((measured.labels == i).sum()) for i in chosen]
    return [Figure(confusion_chart(part, names, totals), title, caption)]


def _cost(spent: Cost, run: RunFiles) -> Section:
    values: list[tuple[str, float | None, str, str]] = [
        ("parameters tuned", spent.tunable, "{:,.0f}", "kept in the adapter" if run.adapter else ""),
        ("with training-only heads", spent.trained, "{:,.0f}", "heads discarded afterwards"),
        ("adapter file", spent.adapter_bytes and spent.adapter_bytes / 1024, "{:,.0f} KiB", ""),
        ("steps", spent.steps, "{:,.0f}", ""),
        ("seconds", spent.seconds, "{:,.0f}", "whole run, with scoring"),
        ("images per second", spent.images_per_second, "{:,.1f}", "while adapting, median step"),
    ]
    made = [Tile(name, form.format(value), note) for name, value, form, note in values if value is not None]
    return Section("cost", "Cost", tiles=tuple(made), missing="" if made else "The run did not record its cost.")


def _folds(run: RunFiles, measured: Measured | None, options: ReportOptions) -> list[Fold]:
    """What the numbers depend on, as recorded, and how this report was measured."""
    how: dict[str, Any] = {"dept": __version__, "limit": options.limit, "sample_seed": SAMPLE_SEED}
    if measured is not None:
        how |= {"images": len(measured.images), "of": measured.found, "root": shown(measured.images.root.absolute())}
        how["same_list_as_run"] = measured.same_list
    for name, file in (("adapter_sha256", run.adapter), ("model_sha256", run.model)):
        if file is not None:
            how[name] = file_sha256(file)
    folds = [("Protocol", run.protocol), ("Options", run.config.get("options", {}))]
    folds += [("Versions and device of the run", run.result.get("environment", {})), ("This report", how)]
    return [Fold(name, json.dumps(value, indent=2, sort_keys=True, default=str)) for name, value in folds if value]

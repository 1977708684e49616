"""`dept evaluate MODEL LABELLED [--adapter A]`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dept.cli.command import REPEATABLE, Command, Positional
from dept.cli.parse import parse
from dept.cli.parts import Inference, Json, ModelFile, SkippedFiles
from dept.cli.show import as_json, report_skipped, skipped_kept, table


@dataclass(frozen=True)
class EvaluateInput(ModelFile):
    """The model or models, and the labelled images."""

    labelled: Annotated[Path, Positional("LABELLED")]
    """folder with one sub-folder per class (the model's names), .tar archives with key.cls, list file, or address"""
    adapter: Annotated[tuple[Path, ...], REPEATABLE] = ()
    """adapter file of the domain; if repeated, the probabilities of the adapted models are averaged"""
    member: Annotated[tuple[str, ...], REPEATABLE] = ()
    """one more model of the ensemble, as MODEL or MODEL,ADAPTER; may be repeated"""


@dataclass(frozen=True)
class EvaluateOutput(Json, SkippedFiles):
    """Scores for programs, and what was not scored."""


COMMAND = Command(
    "evaluate",
    "Evaluate a model on labelled images.",
    {"Input": EvaluateInput, "Output": EvaluateOutput, "Run": Inference},
)


def run(argv: list[str]) -> None:
    """Evaluate the model, or the ensemble, and print its scores."""
    given, output, how = parse(COMMAND, argv)
    from dept.data.images import decodable, find_labelled
    from dept.inference import evaluate_ensemble
    from dept.models.files import load

    pairs = [(given.model, adapter) for adapter in given.adapter] or [(given.model, None)]
    pairs += [(model, adapter or None) for model, _, adapter in (member.partition(",") for member in given.member)]
    files = [Path(file) for pair in pairs for file in pair if file is not None]
    output.check_skipped(None, given.labelled, *files)
    models = [load(model, adapter=adapter) for model, adapter in pairs]
    model = models[0]
    images = find_labelled(given.labelled, model.classes)
    with skipped_kept(output.skipped):
        for channels in {one.card.preprocess.channels for one in models}:  # every member must be able to read them
            images = decodable(images, channels=channels)
    report_skipped(images, output.skipped)
    # One member alone takes the same path: the mean of one is itself, bit for bit.
    scores = evaluate_ensemble(models, images, device=how.device, workers=how.workers, batch=how.batch)
    if output.json:
        print(as_json(scores))
        return
    low, high = scores["ci95"]
    print(f"images          {scores['n']}")
    print(f"top-1           {100 * scores['top1']:.2f} %  (95 % interval {100 * low:.2f} to {100 * high:.2f})")
    print(f"mean per class  {100 * scores['mean_per_class']:.2f} %")
    print(f"NLL             {scores['nll']:.4f}\nECE             {scores['ece']:.4f}\n")
    counts = Counter(model.classes[label] for label in images.labels or ())
    rows = [[name, str(counts[name]), f"{100 * value:.1f} %"] for name, value in scores["per_class"].items()]
    print(table(["class", "images", "accuracy"], rows))

"""Reports of runs: sections by what is known, one file that fetches nothing, hostile names, bad input."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from html_checks import checked
from PIL import Image

pytest.importorskip("jinja2")

from dept.cli.adapt import COMMAND
from dept.cli.main import main
from dept.cli.parse import parse
from dept.data.images import find_labelled
from dept.errors import DataError, UsageError
from dept.io import read_tensors, write_tensors
from dept.models.files import save_model
from dept.report import page as page_module
from dept.report.blocks import Page
from dept.report.command import reproduce
from dept.report.measure import ReportOptions, measure
from dept.report.page import make_page, render, write_report
from dept.runs.adapt import AdaptRun, adapt
from dept.runs.inputs import Missing
from dept.runs.read import cost, loss_curves, read_run, score_curves
from dept.runs.train import TrainRun, train
from dept.runs.uda import adapt_with_source
from support import CLASSES, PROJECTION, tiny_model, write_labelled

PCA = ReportOptions(projection="pca", device="cpu")


def titles(page: Page) -> dict[str, bool]:
    """Section keys, and whether each section has content."""
    return {section.key: not section.missing for section in page.sections}


def copied(run: AdaptRun, out: Path) -> Path:
    return Path(shutil.copytree(run.folder, out))


def test_labelled_run_has_every_section(scored_run: AdaptRun, tmp_path: Path) -> None:
    file, page = write_report(scored_run.folder, out=tmp_path / "r.html", options=PCA)
    shown = titles(page)
    assert list(shown) == ["curves", "confidence", "classes", "changed", "features", "attention", "cost"]
    assert [key for key, there in shown.items() if not there and key != "changed"] == []
    assert shown["changed"] == (scored_run.result["label_free"]["changed"] > 0)
    found = checked(file.read_text())
    before, after = (100 * scored_run.result[when]["top1"] for when in ("before", "after"))
    assert f"from {before:.1f} % to {after:.1f} % on 12 labelled images" in page.verdict
    assert "paired 95 % interval" in page.verdict and page.remarks == ()
    figures = {figure.title for section in page.sections for figure in section.figures}
    terms = {curve.name for curve in loss_curves(read_run(scored_run.folder).events)}
    assert {"Accuracy", "Total loss", "Calibration", "Accuracy per class", "Before", "After"} <= figures
    assert len(page.sections[0].figures) == len(terms) + 1
    attended = next(section for section in page.sections if section.key == "attention")
    assert found.tags.count("img") >= 3 * (1 + 2 * 2)  # three images, each with two maps of two stages
    assert [len(gallery.pictures) for gallery in attended.galleries] == [5, 5, 5]


@pytest.mark.parametrize("labelled", [True, False])
def test_images_whose_label_changed(
    labelled: bool, scored_run: AdaptRun, target_labelled: Path, tmp_path: Path
) -> None:
    """With the rows of the head rolled every label changes. Right and wrong appear only with labels."""
    folder = copied(scored_run, tmp_path / "run")
    tensors, meta = read_tensors(folder / "adapter.safetensors", "adapter")
    rolled = {name: tensor.roll(1, 0) if name.startswith("head") else tensor for name, tensor in tensors.items()}
    write_tensors(folder / "adapter.safetensors", rolled, meta)
    options = replace(PCA, score=target_labelled) if labelled else replace(PCA, images=target_labelled)
    page = make_page(folder, options)
    section = next(section for section in page.sections if section.key == "changed")
    pictures = [picture for gallery in section.galleries for picture in gallery.pictures]
    truly = {f"{name}/{number}.png": name for name in CLASSES for number in range(4)}
    assert len(pictures) == 12
    for picture in pictures:
        path, old, new = re.match(r"(\S+): (\w+) → (\w+) \(", picture.alt).groups()  # type: ignore[union-attr]
        tone, mark = ("good", "✓") if new == truly[path] else ("bad", "✗") if old == truly[path] else ("", "≠")
        assert (picture.tone, picture.mark) == ((tone, mark) if labelled else ("", ""))
        assert picture.caption.startswith(f"{old} → {new}") and old != new
    assert any("The run itself recorded" in remark for remark in page.remarks) == labelled


def test_unlabelled_run_says_what_is_known_without_labels(blind_run: AdaptRun, tmp_path: Path) -> None:
    file, page = write_report(blind_run.folder, out=tmp_path / "r.html", options=PCA)
    assert "as far as can be told without labels" in page.verdict and "10 predictions changed" in page.verdict
    figures = {figure.title for section in page.sections for figure in section.figures}
    assert "Calibration" not in figures and "Accuracy" not in figures
    assert "Share of predictions per class" in figures
    text = " ".join(checked(file.read_text()).text)
    assert "Now right" not in text and "✓" not in text and "✗" not in text


def test_without_images_the_rest_is_still_there(
    source_run: TrainRun, target_labelled: Path, tmp_path: Path, scored_run: AdaptRun
) -> None:
    images, folder = tmp_path / "images", tmp_path / "run"
    shutil.copytree(target_labelled, images)
    adapt(source_run.file, images, out=folder, score_on=images, method="tent", epochs=1, device="cpu")
    shutil.rmtree(images)
    file, page = write_report(folder)
    assert file == folder / "report.html"
    assert titles(page) == {
        "curves": True, "confidence": False, "classes": True, "changed": False, "features": False,
        "attention": False, "cost": True,
    }  # fmt: skip
    assert "recorded an accuracy of" in page.verdict and str(images) in page.remarks[0]
    assert "Pass the new place as `images`" in page.remarks[0]
    checked(file.read_text())


def test_sample_is_fixed_and_stated(scored_run: AdaptRun) -> None:
    pages = [make_page(scored_run.folder, replace(PCA, limit=5)) for _ in range(2)]
    assert pages[0] == pages[1]
    assert "Measured on 5 of 12 images, sampled with a fixed seed." in pages[0].remarks
    assert any("The run itself recorded" in remark for remark in pages[0].remarks)
    assert '"limit": 5' in pages[0].folds[-1].text


def test_same_bytes_twice(scored_run: AdaptRun, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    options = ReportOptions(projection="tsne", device="cpu")
    one, two = (write_report(scored_run.folder, out=tmp_path / name, options=options)[0] for name in "ab")
    assert one.read_bytes() == two.read_bytes()
    assert one.stat().st_size < 3_000_000


def test_hostile_class_and_file_names_are_text(tmp_path: Path) -> None:
    evil = '<img src=x onerror="alert(1)">&\'"'
    names, images = (evil, "</style><script>1"), tmp_path / "images"
    for number in range(6):
        images.mkdir(exist_ok=True)
        Image.new("RGB", (40, 40), (40 * number, 90, 10)).save(images / f"<script>{number}&'.png")
    labels = "".join(f"<script>{number}&'.png {number % 2}\n" for number in range(6))
    (images / "list.txt").write_text(labels)
    model = save_model(tiny_model(names), tmp_path / "m.safetensors")
    listed = images / "list.txt"
    run = adapt(model, images, out=tmp_path / "run", method="tent", score_on=listed, epochs=1, device="cpu")
    file, _ = write_report(run.folder, options=PCA)
    html = file.read_text()
    parser = checked(html)  # no script, no handler, closed in order
    assert "<script" not in html and "&lt;script&gt;" in html
    assert evil in " ".join(parser.text)


def test_html_of_names_that_changed(scored_run: AdaptRun) -> None:
    page = make_page(scored_run.folder, PCA)
    odd = replace(page, title="<i>x</i>", verdict="a < b & c, see `<u>`", command="dept '<x>'")
    html = render(odd)
    assert "see <code>&lt;u&gt;</code></p>" in html
    assert "<i>x" not in html and "a &lt; b &amp; c" in html and "dept &#39;&lt;x&gt;&#39;" in html


def test_curves_and_cost_of_a_resumed_run(tmp_path: Path) -> None:
    events = [
        {"event": "start", "time": 0.0, "total": 3, "notes": []},
        {"event": "step", "time": 1.0, "step": 0, "terms": {"loss": 5.0}},
        {"event": "step", "time": 3.0, "step": 1, "terms": {"loss": 4.0}},
        {"event": "step", "time": 103.0, "step": 1, "terms": {"loss": 3.0}},
        {"event": "step", "time": 105.0, "step": 2, "terms": {"loss": 2.0}},
        {"event": "step", "time": 107.0, "step": 3, "terms": {"loss": 1.0}},
        {"event": "score", "time": 107.0, "step": 4, "top1": {"student": 0.5}},
        {"event": "end", "time": 108.0},
    ]
    (tmp_path / "config.json").write_text(json.dumps({"protocol": {"config": {"batch": 8}}}))
    text = "\n".join(map(json.dumps, events)) + '\n{"event": "st'  # the last line is half written
    (tmp_path / "events.jsonl").write_text(text)
    run = read_run(tmp_path)
    (curve,) = loss_curves(run.events)
    assert (curve.steps, curve.values) == ((0, 1, 2, 3), (5.0, 3.0, 2.0, 1.0))
    assert score_curves(run.events)[0].values == (0.5,)
    spent = cost(run)
    assert (spent.steps, spent.seconds, spent.images_per_second) == (4, 108.0, 4.0)


def test_train_run(source_run: TrainRun, source_images: Path, tmp_path: Path) -> None:
    options = replace(PCA, score=source_images)
    file, page = write_report(source_run.folder, out=tmp_path / "r.html", options=options)
    assert "held-out source images" in page.verdict
    found = titles(page)
    assert found["curves"] and found["confidence"] and found["classes"] and "changed" not in found
    checked(file.read_text())
    assert "--arch" in page.command and page.command.startswith(f"dept train {source_images} ")


def test_a_training_is_measured_on_what_it_held_out(source_run: TrainRun, tmp_path: Path) -> None:
    page = make_page(source_run.folder, PCA)
    assert titles(page)["confidence"] and titles(page)["classes"]
    assert "Measured on the held-out source images." in page.remarks
    result = source_run.result
    measured = measure(read_run(source_run.folder), PCA)
    assert len(measured.images) == result["held_out"] and measured.labels is not None
    right = float((measured.after.predicted == measured.labels).double().mean())
    assert right == pytest.approx(result["accuracy"])


@pytest.mark.parametrize("named", [False, True])
def test_a_training_on_several_sources(named: bool, tmp_path: Path) -> None:
    places = [write_labelled(tmp_path / name, 3, seed=number) for number, name in enumerate(("a", "b"))]
    (places[0] / "red" / "broken.png").write_bytes(b"no image")
    sources = dict(zip(("one", "two"), places, strict=True)) if named else places
    settings = {"max_iters": 1, "batch": 4, "device": "cpu", **PROJECTION}
    run = train(tiny_model(prompts=4).train(), sources, out=tmp_path / "run", **settings)
    page, read = make_page(run.folder, PCA), read_run(run.folder)
    assert page.command.startswith(f"dept train {places[0]} {places[1]} ")
    assert len(measure(read, PCA).images) == run.result["held_out"]
    (places[1] / "red" / "0.png").unlink()
    with pytest.raises(Missing, match="not those of the run"):
        measure(read, PCA)


def test_a_training_on_images_that_were_not_given_by_path(source_images: Path, tmp_path: Path) -> None:
    settings = {"max_iters": 1, "batch": 4, "device": "cpu", **PROJECTION}
    run = train(tiny_model().train(), find_labelled(source_images), out=tmp_path / "run", **settings)
    page = make_page(run.folder, PCA)
    assert not titles(page)["confidence"] and page.command.startswith("dept train SOURCE ")
    assert "does not record where its images came from" in page.remarks[0]


def test_stream_folder(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    out = tmp_path / "stream"
    command = ["stream", str(source_run.file), str(target_images), "--out", str(out), "--method", "tent"]
    assert main([*command, "--device", "cpu", "--batch", "4"]) == 0
    seeing = make_page(out, PCA)
    assert titles(seeing)["confidence"] and "of 10 predictions changed" in seeing.verdict
    assert "confidence over 10 images" in seeing.sections[0].figures[0].svg
    words = shlex.split(seeing.command)
    assert words[:2] == ["dept", "stream"] and words[words.index("--out") :] == [
        *("--out", "RUN", "--method", "tent", "--device", "cpu", "--batch", "4")
    ]
    checked(render(seeing))
    for name in ("config.json", "events.jsonl", "result.json"):  # as in a folder of an older version
        (out / name).unlink()
    blind = make_page(out, PCA)
    assert "The stream predicted 10 images" in blind.verdict and titles(blind)["curves"] and not blind.command
    named = make_page(out, replace(PCA, model=source_run.file, images=target_images))
    assert "of 10 predictions changed" in named.verdict


def test_unfinished_run(scored_run: AdaptRun, tmp_path: Path) -> None:
    folder = copied(scored_run, tmp_path / "run")
    (folder / "result.json").unlink()
    (folder / "adapter.safetensors").unlink()
    page = make_page(folder, PCA)
    assert "not finished: 6 of 6 steps" in page.verdict and titles(page)["curves"]


def test_run_that_just_began(scored_run: AdaptRun, tmp_path: Path) -> None:
    folder = copied(scored_run, tmp_path / "run")
    (folder / "result.json").unlink()
    (folder / "adapter.safetensors").unlink()
    lines = (folder / "events.jsonl").read_text().splitlines()
    (folder / "events.jsonl").write_text("\n".join(lines[:2]))  # start, first score
    page = make_page(folder, PCA)
    assert "not finished: 0 of 6 steps" in page.verdict
    checked(render(page))


def test_run_with_source_images(
    source_run: TrainRun, source_images: Path, target_images: Path, target_labelled: Path, tmp_path: Path
) -> None:
    settings = {"method": "erm", "max_iters": 2, "batch": 4, "device": "cpu"}
    adapt_with_source(source_run.file, source_images, target_images, out=tmp_path / "run", **settings)
    blind = make_page(tmp_path / "run", PCA)
    assert "unknown, because no labels" in blind.verdict
    seeing = make_page(tmp_path / "run", replace(PCA, score=target_labelled))
    assert "on 12 labelled images" in seeing.verdict and titles(seeing)["attention"]
    assert seeing.command.startswith(f"dept uda {source_run.file} {source_images} {target_images} --out RUN")


def test_the_command_repeats_the_settings(scored_run: AdaptRun) -> None:
    run = read_run(scored_run.folder)
    command, notes = reproduce(run)
    words = shlex.split(command)
    assert words[:2] == ["dept", "adapt"] and notes == []
    given, _, _, options, config = parse(COMMAND, words[2:])
    recorded = run.config["protocol"]["config"]
    assert json.loads(json.dumps(asdict(config))) == recorded
    assert json.loads(json.dumps(asdict(options))) == run.config["options"]
    assert str(given.model) == run.inputs["model"] and str(given.score) == run.inputs["score"]


@pytest.mark.parametrize(
    ("break_it", "words", "code"),
    [
        (lambda f: [p.unlink() for p in f.iterdir()], "is not a run folder", 2),
        (lambda f: shutil.rmtree(f), "is not a folder", 2),
        (lambda f: (f / "result.json").write_text("{"), "result.json is not readable JSON", 3),
        (
            lambda f: (f / "config.json").write_text("[]"),
            "config.json is damaged: the whole is []; expected an object",
            3,
        ),
        (
            lambda f: (f / "result.json").write_text('{"before": {}, "after": {}}'),
            "the entry before.top1 is missing",
            3,
        ),
        (lambda f: (f / "events.jsonl").write_text('{"event": ""}\nnot\n{}\n'), "events.jsonl, line 2", 3),
    ],
    ids=["empty", "nowhere", "broken-result", "config-list", "cut-result", "broken-event"],
)
def test_bad_folders_give_a_sentence(
    break_it: object, words: str, code: int, scored_run: AdaptRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(scored_run, tmp_path / "run")
    break_it(folder)  # type: ignore[operator]
    assert main(["report", str(folder)]) == code
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said and not (folder / "report.html").exists()


def test_bad_model_gives_a_sentence(scored_run: AdaptRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "r.html")]
    assert main(["report", str(scored_run.folder), "--model", str(tmp_path / "no"), *out]) == 3
    assert "does not exist" in capsys.readouterr().err
    other = save_model(tiny_model(seed=9), tmp_path / "other.safetensors")
    assert main(["report", str(scored_run.folder), "--model", str(other), *out]) == 3
    assert "another backbone" in capsys.readouterr().err
    with pytest.raises(DataError):
        make_page(scored_run.folder, replace(PCA, score=tmp_path / "nothing"))


def test_command_prints_verdict_and_file(
    scored_run: AdaptRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.html"
    command = ["report", str(scored_run.folder), "--out", str(file), "--limit", "6", "--projection", "pca"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "labelled images" in said and str(file) in said and file.is_file()


def test_other_images_are_mentioned(scored_run: AdaptRun, tmp_path: Path) -> None:
    other = write_labelled(tmp_path / "other", 2, seed=3)
    page = make_page(scored_run.folder, replace(PCA, score=other))
    assert any("not exactly the images" in remark for remark in page.remarks)


def test_skipped_images_are_not_other_images(source_run: TrainRun, target_labelled: Path, tmp_path: Path) -> None:
    shutil.copytree(target_labelled, tmp_path / "site")
    (tmp_path / "site" / "red" / "broken.png").write_bytes(b"no image")
    site = tmp_path / "site"
    run = adapt(source_run.file, site, out=tmp_path / "run", method="tent", score_on=site, max_iters=1, device="cpu")
    assert len(run.result["skipped"]) == 1
    assert not any("not exactly the images" in remark for remark in make_page(run.folder, PCA).remarks)


def test_missing_extra_names_the_pip_line(scored_run: AdaptRun, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match=r"pip install 'dept\[report\]'"):
        page_module.write_report(scored_run.folder)

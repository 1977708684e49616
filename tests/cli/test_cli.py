"""The commands in process: happy paths, and every expected failure as a sentence with a code."""

from __future__ import annotations

import csv
import io
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from dept.cli.main import COMMANDS, main
from dept.cli.show import resume_command, show_progress, table
from dept.data.images import ImageSet, find_images
from dept.inference import Prediction, predict
from dept.io import read_tensors
from dept.models.files import load, save_model
from dept.runs.train import TrainRun
from dept.share.predictions import Predictions, as_csv
from support import ARCH, PROJECTION, TIMM, StopAfter, events, tiny_model, write_labelled

SMALL = ["--batch", "4", "--epochs", "1", "--device", "cpu"]
DEPT = ["--method", "dept"]
HEADS = [word for name, value in PROJECTION.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def adapted(source_run: TrainRun, target_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    assert main(["adapt", str(source_run.file), str(target_images), "--out", str(out), *DEPT, *SMALL, *HEADS]) == 0
    return out / "adapter.safetensors"


def fails(capsys: pytest.CaptureFixture[str], argv: list[Any], code: int) -> str:
    """Run a command that must fail with a sentence; returns it."""
    capsys.readouterr()
    assert main([str(word) for word in argv]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("dept: ") and "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    return err


# ---- the front door ----


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["--help"], ["-h"], ["help"]):
        assert main(argv) == 0
        text = capsys.readouterr().out
        assert all(f"  {name}" in text for name in COMMANDS) and "dept demo" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("dept 0.")


def test_a_wrong_command_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean `dept adapt`?" in fails(capsys, ["adpat"], 2)
    assert "`dept --help` lists the commands" in fails(capsys, ["xyzzy"], 2)


@pytest.mark.parametrize("command", ["train", "adapt", "predict", "evaluate", "info", "methods"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"usage: dept {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["adapt"], "Missing from dept adapt: MODEL, IMAGES, --out PATH. See `dept adapt --help`."),
        (["adapt", "m", "i", "x", "--out", "o"], "Unexpected: x. Files and folders come before flags. See"),
        (["train", "x", "--out", "y", "--epochs", "many"], "Error parsing --epochs: invalid literal for int()"),
        (["predict", "m", "i", "--format", "xml"], "choice 'xml' for argument '--format'. Expected one of"),
        (["stream", "m", "i", "--out", "o", "--lr", "-1"], "dept: --lr must be at least 0 and finite, found -1.0. See"),
    ],
)  # fmt: skip
def test_usage_errors_are_sentences(argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in fails(capsys, argv, 2)


def test_a_wrong_flag_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert "`dept predict` has no flag --nonsense. `dept predict --help-all`" in fails(
        capsys, ["predict", "m", "i", "--nonsense", "1"], 2
    )
    assert "Did you mean --epochs?" in fails(capsys, ["train", "x", "--out", "y", "--epoch=3"], 2)


# ---- train ----


def test_train(source_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    argv = ["train", str(source_images), "--out", str(out), "--arch", ARCH, "--no-pretrained", "--timm",
            json.dumps(TIMM), "--stages", "2", "--prompts", "3", *SMALL, *HEADS]  # fmt: skip
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "held-out accuracy" in text and "dept adapt" in text
    assert load(out / "model.safetensors").classes == ("blue", "green", "red")
    assert events(out)[0]["inputs"] == {"sources": [str(source_images)]}
    assert "already holds a run" in fails(capsys, argv, 2)
    assert main([*argv, "--overwrite", "--json", "--stages", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 22


def test_train_refusals(source_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["train", source_images, "--out", tmp_path / "run", "--no-pretrained"]
    assert "knows no architecture 'vit_nope'" in fails(capsys, [*base, "--arch", "vit_nope"], 2)
    assert "--timm must be a JSON object" in fails(capsys, [*base, "--arch", ARCH, "--timm", "img_size=3"], 2)
    assert "--timm must be a JSON object" in fails(capsys, [*base, "--arch", ARCH, "--timm", "[1]"], 2)
    words = [*base, "--arch", ARCH, "--timm", '{"nonsense": 1}']
    assert "the option 'nonsense' is not supported" in fails(capsys, words, 2)
    assert "no preset 'x'" in fails(capsys, [*base, "--preset", "x"], 2)
    assert "does not exist" in fails(capsys, ["train", tmp_path / "no", "--out", tmp_path / "run"], 3)
    words = [*base, "--arch", ARCH, "--weights", tmp_path / "none.safetensors"]
    assert "does not exist" in fails(capsys, words, 3)
    words = [*base, "--arch", ARCH, "--timm", json.dumps(TIMM), "--stages", "3"]
    assert "does not divide the 4 layers" in fails(capsys, words, 1)
    words = [*base, "--arch", "resnet10t"]
    assert "cannot be prompted" in fails(capsys, words, 1)


# ---- convert ----


def test_convert(tmp_path: Path, source_images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint of a training script, wrapped and prefixed, gives the logits of the timm model it came from."""
    theirs = timm.create_model(ARCH, num_classes=3, **TIMM).eval()
    state = {f"module.{name}": tensor for name, tensor in theirs.state_dict().items()}
    torch.save({"state_dict": state, "epoch": torch.tensor(3)}, tmp_path / "last.pth")
    (tmp_path / "classes.txt").write_text("blue\ngreen\nred\n")
    options = ["--arch", ARCH, "--timm", json.dumps(TIMM), "--classes", str(tmp_path / "classes.txt")]
    out = tmp_path / "my model.safetensors"
    assert main(["convert", str(tmp_path / "last.pth"), *options, "--out", str(out), "--resize", "40"]) == 0
    assert f"dept evaluate '{out}'" in capsys.readouterr().out
    model, images = load(out), torch.randn(2, 3, 32, 32)
    assert model.classes == ("blue", "green", "red") and model.card.preprocess.resize == 40
    assert torch.equal(model(images), theirs(images))


def test_convert_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classes, model = tmp_path / "classes.txt", tmp_path / "model.safetensors"
    classes.write_text("blue\ngreen\nred\n")
    save_file(timm.create_model(ARCH, num_classes=3, **TIMM).state_dict(), model)
    before = model.read_bytes()
    base = ["convert", model, "--arch", ARCH, "--timm", json.dumps(TIMM), "--classes", classes]
    assert "already exists and is not replaced" in fails(capsys, [*base, "--out", model], 2)
    assert model.read_bytes() == before
    out = ["--out", tmp_path / "new.safetensors"]
    assert "--resize must be at least the crop of 32, found 8" in fails(capsys, [*base, *out, "--resize", "8"], 2)
    assert "--mean needs 3 values" in fails(capsys, [*base, *out, "--mean", "0.5"], 2)
    assert "--std must be above 0" in fails(capsys, [*base, *out, "--std", "0", "0", "0"], 2)
    assert "--mean must be finite" in fails(capsys, [*base, *out, "--mean", "0", "nan", "0"], 2)
    state = load_file(model)
    state["norm.weight"][0] = float("nan")
    save_file(state, tmp_path / "nan.safetensors")
    refusal = fails(capsys, ["convert", tmp_path / "nan.safetensors", *base[2:], *out], 3)
    assert "not finite (in norm.weight)" in refusal
    classes.write_text("blue\ngreen\n")
    assert "has 3 outputs, but there are 2 class names" in fails(capsys, [*base, *out], 3)
    assert "cannot be read as plain weights" in fails(capsys, ["convert", classes, *base[2:], *out], 3)
    for content in (b'["blue", "gre', b"blau\ngr\xfcn\n"):
        classes.write_bytes(content)
        assert "classes.txt cannot be read" in fails(capsys, [*base, *out], 3)
    assert not (tmp_path / "new.safetensors").exists()


def test_a_resnet_goes_from_convert_to_adapt_by_the_printed_command(
    tmp_path: Path, target_images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts cannot enter a ResNet: the next command does without them, and the refusal names methods that do."""
    options = {"channels": [8, 8, 16, 16]}
    torch.save(timm.create_model("resnet10t", num_classes=3, **options).state_dict(), tmp_path / "r.pth")
    (tmp_path / "classes.txt").write_text("blue\ngreen\nred\n")
    model, run = tmp_path / "r.safetensors", tmp_path / "run"
    argv = ["convert", tmp_path / "r.pth", "--arch", "resnet10t", "--timm", json.dumps(options), "--out", model]
    assert main([str(word) for word in [*argv, "--classes", tmp_path / "classes.txt"]]) == 0
    command = f"dept adapt {model} NEW_IMAGES --out runs/site"
    assert command in capsys.readouterr().out
    base = ["adapt", model, target_images, "--out", run, "--device", "cpu"]
    refusal = "This model is a ResNet (resnet10t). The methods tent and shot need no prompts."
    assert refusal in fails(capsys, [*base, *DEPT], 2)
    assert refusal in fails(capsys, ["stream", *base[1:5]], 2)
    for flag in ("--prompts", "--stages"):
        assert refusal in fails(capsys, [*base, *DEPT, flag, "0"], 2)
    assert not run.exists()
    assert main([str(word) for word in [*base, "--max-iters", "2", "--batch", "4"]]) == 0


# ---- adapt ----


def test_adapt_prints_what_to_do_next(
    source_run: TrainRun, target_images: Path, target_labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["adapt", str(source_run.file), str(target_images), "--out", str(tmp_path / "run"), "--method", "tent",
            "--score", str(target_labelled), *SMALL]  # fmt: skip
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert f"dept predict {source_run.file} IMAGES --adapter {tmp_path / 'run' / 'adapter.safetensors'}" in out
    assert "Accuracy" in out and "step 0:" in err and "\r" not in err


def test_adapt_as_json(
    source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "adapt",
        str(source_run.file),
        str(target_images),
        "--out",
        str(tmp_path / "r"),
        "--method",
        "source",
        "--json",
    ]
    assert main([*argv, "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "source"


def test_adapt_flags_reach_the_method(
    source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    argv = ["adapt", str(source_run.file), str(target_images), "--out", str(out), *DEPT, "--preset", "paper",
            "--accept", "--w-cls", "0", "--seed", "5", "--half", "--max-iters", "1", *SMALL, *HEADS]  # fmt: skip
    assert main(argv) == 0
    protocol = json.loads((out / "result.json").read_text())["protocol"]
    assert (protocol["config"]["reduction"], protocol["config"]["w_cls"], protocol["seed"]) == ("sum", 0.0, 5)
    tensors, _ = read_tensors(out / "adapter.safetensors", "adapter")
    assert tensors["prompts"].dtype == torch.float16


def test_adapt_refusals(
    source_run: TrainRun, adapted: Path, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", tmp_path / "run"]
    assert "no method 'nope'. Choose from" in fails(capsys, ["adapt", "m", "i", *out, "--method", "nope"], 2)
    assert "no preset 'x'" in fails(capsys, ["adapt", "m", "i", *out, *DEPT, "--preset", "x"], 2)
    assert "m.safetensors does not exist" in fails(capsys, ["adapt", "m.safetensors", target_images, *out], 3)
    assert "does not exist" in fails(capsys, ["adapt", source_run.file, tmp_path / "none", *out], 3)
    assert "a model file is needed" in fails(capsys, ["adapt", adapted, target_images, *out], 3)
    words = ["adapt", source_run.file, target_images, "--out", adapted.parent]
    assert "already holds a run" in fails(capsys, words, 2)
    assert "nothing to resume" in fails(capsys, ["adapt", source_run.file, target_images, *out, "--resume"], 2)
    words = ["adapt", source_run.file, target_images, *out, "--ratio", "2"]
    assert "--ratio must be above 0" in fails(capsys, words, 2)
    (tmp_path / "empty").mkdir()
    assert "holds no images" in fails(capsys, ["adapt", source_run.file, tmp_path / "empty", *out], 3)


def test_ctrl_c_prints_the_command_that_goes_on(
    source_run: TrainRun, adapted: Path, target_images: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    out = tmp_path / "my run"
    argv = ["adapt", str(source_run.file), str(target_images), "--out", str(out), *DEPT, *SMALL, *HEADS]
    with monkeypatch.context() as patch:
        patch.setattr("dept.runs.folder.stop_signal", StopAfter(2))
        assert main(argv) == 130
    err = capsys.readouterr().err
    assert "Stopped after step 2" in err and f"--out '{out}'" in err and err.rstrip().endswith("--resume")
    assert main([*argv, "--resume"]) == 0
    resumed, whole = (read_tensors(file, "adapter")[0] for file in (out / "adapter.safetensors", adapted))
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_ctrl_c_elsewhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("dept.cli.info.run", lambda argv: signal.raise_signal(signal.SIGINT))
    assert main(["info", "x"]) == 130 and capsys.readouterr().err == "dept: stopped.\n"


def test_out_of_memory_says_which_flag_to_lower(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(argv: list[str]) -> int:
        raise RuntimeError("CUDA out of memory. Tried to allocate …")

    monkeypatch.setattr("dept.cli.info.run", explode)
    assert "Lower --batch" in fails(capsys, ["info", "x"], 1)


def test_an_unexpected_error_is_a_sentence_with_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(argv: list[str]) -> int:
        raise RuntimeError("shapes do not match\nat all")

    monkeypatch.setattr("dept.cli.info.run", explode)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said = fails(capsys, ["info", "x"], 1)
    (file,) = tmp_path.iterdir()
    assert said == f"dept: unexpected error (RuntimeError: shapes do not match). Details: {file}\n"
    assert "Traceback" in file.read_text() and "explode" in file.read_text()


def test_resume_command_quotes_and_replaces() -> None:
    words = ["adapt", "m.safetensors", "my images", "--out", "run", "--overwrite", "--resume"]
    assert resume_command(words) == "dept adapt m.safetensors 'my images' --out run --resume"


# ---- predict and evaluate ----


def test_predict_csv(
    source_run: TrainRun, adapted: Path, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["predict", str(source_run.file), str(target_images), "--adapter", str(adapted), "--device", "cpu"]) == 0
    )
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    expected = predict(load(source_run.file, adapter=adapted), target_images, device="cpu")
    assert [row["path"] for row in rows] == find_images(target_images).names()
    assert [row["label"] for row in rows] == [p.label for p in expected]
    assert all(abs(float(row["confidence"]) - p.confidence) < 1e-4 for row, p in zip(rows, expected, strict=True))
    assert all(len(row["topk"].split()) == 3 for row in rows)


def test_predict_jsonl_to_a_file(
    source_run: TrainRun, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "p.jsonl"
    argv = ["predict", str(source_run.file), str(target_images), "--out", str(out), "--topk", "2", "--features"]
    assert main([*argv, "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "10 predictions in" in captured.err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 10 and len(rows[0]["topk"]) == 2 and len(rows[0]["features"]) == 32
    assert rows[0]["topk"][0]["label"] == rows[0]["label"]
    assert rows[0]["topk"][0]["probability"] == rows[0]["confidence"] >= rows[0]["topk"][1]["probability"]


def test_predict_tells_what_it_skipped(
    source_run: TrainRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_labelled(tmp_path / "i", 1)
    for n in range(7):
        (root / f"bad{n}.png").write_bytes(b"")
    assert main(["predict", str(source_run.file), str(root), "--format", "jsonl", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3 and err.count("skipped ") == 5 and "2 more files" in err


@pytest.mark.parametrize("command", ["predict", "evaluate", "stats"])
def test_all_skipped_files_go_to_a_list(
    command: str, source_run: TrainRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, file = write_labelled(tmp_path / "i", 1), tmp_path / "skipped.txt"
    for n in range(7):
        (root / "red" / f"bad{n}\n.png").write_bytes(b"")
    (root / "red" / "c.heic").write_bytes(b"")
    argv = [command, str(source_run.file), str(root), "--device", "cpu", "--skipped", str(file)]
    out = ["--out", str(tmp_path / ("stats.safetensors" if command == "stats" else "labels.csv"))]
    argv += out if command != "evaluate" else []
    assert main(argv) == 0
    assert f"… and 3 more files, see {file}" in capsys.readouterr().err
    rows = [line.split("\t") for line in file.read_text().splitlines()]
    assert [row[0] for row in rows[:2]] == [f"{root}/red/c.heic", f"{root}/red/bad0\\n.png"] and len(rows) == 8
    assert rows[0][1].startswith(".heic files are not read") and "UnidentifiedImageError" in rows[1][1]


@pytest.mark.parametrize("command", ["predict", "evaluate", "stats"])
def test_the_list_is_written_where_no_image_decodes(
    command: str, source_run: TrainRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, file = write_labelled(tmp_path / "i", 1), tmp_path / "skipped.txt"
    for image in root.rglob("*.png"):
        image.write_bytes(b"")
    (root / "red" / "c.heic").write_bytes(b"")
    out = ["--out", tmp_path / "stats.safetensors"] if command == "stats" else []
    assert "None of the 3 images in" in fails(capsys, [command, source_run.file, root, "--skipped", file, *out], 3)
    assert len(file.read_text().splitlines()) == 4


def test_a_long_pass_is_silent_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        show_progress()
        logging.getLogger("dept.progress").info("Downloading")
        logging.getLogger("dept.progress.pass").info("Reading images, batch: 1 of 9")
        assert ("1 of 9" in (said := capsys.readouterr().err)) == terminal and "Downloading" in said


def test_the_list_of_skipped_files_replaces_nothing(
    source_run: TrainRun, source_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = source_run.file, tmp_path / "labels.csv"
    for command in ("predict", "evaluate", "stats"):
        words = [command, model, source_images, "--skipped", model]
        assert "is an input and is not replaced. Choose another --skipped" in fails(capsys, words, 2)
    words = ["predict", model, source_images, "--out", out, "--skipped", out]
    assert "--skipped and --out are the same file" in fails(capsys, words, 2)


def test_a_file_that_only_colour_models_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The check decodes as the run does: one LAB image does not stop a grey model."""
    model = save_model(tiny_model(in_chans=1), tmp_path / "grey.safetensors")
    root = write_labelled(tmp_path / "i", 2)
    Image.new("LAB", (40, 40)).save(root / "red" / "lab.tif")
    assert main(["predict", str(model), str(root), "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 + 6 and "lab.tif: ValueError: conversion from LAB" in err
    assert main(["evaluate", str(model), str(root), "--device", "cpu"]) == 0
    for command in ("adapt", "stream"):
        out_folder, words = tmp_path / command, ["--method", "tent", "--batch", "4", "--device", "cpu"]
        assert main([command, str(model), str(root), "--out", str(out_folder), *words]) == 0
        result = json.loads((out_folder / "result.json").read_text())
        assert [path for path, _ in result["skipped"]] == [str(root / "red" / "lab.tif")]


def test_pillow_says_nothing_of_images_that_are_skipped(source_run: TrainRun, tmp_path: Path) -> None:
    root = write_labelled(tmp_path / "i", 1)
    Image.new("1", (10_000, 9_500)).save(root / "red" / "huge.png")
    code = f"from dept.cli.main import main; main(['predict', {str(source_run.file)!r}, {str(root)!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "10000 x 9500 pixels, to decode 95 megapixels; the limit is 80" in done.stderr
    assert "DecompressionBomb" not in done.stderr and len(done.stderr.splitlines()) == 1


def test_csv_has_one_row_per_image_whatever_its_name() -> None:
    names = ["a\rb.png", "c\nd.png", 'e"f.png', "g,h.png", "=1+1.png"]
    rows = [Prediction(name, "cat\r", 0.5, (("cat\r", 0.5),)) for name in names]
    text = as_csv(Predictions(ImageSet(Path(), tuple(map(Path, names))), ("cat\r",), {"prediction": rows}))
    assert [row[0] for row in csv.reader(io.StringIO(text, newline=""))] == ["path", *names]
    one = [Prediction("a.png", "cat", 0.5, (("cat", 0.5),))]
    plain = as_csv(Predictions(ImageSet(Path(), (Path("a.png"),)), ("cat",), {"prediction": one}))
    assert plain.endswith("\na.png,cat,0.5000,cat:0.5000\n")


def test_predict_refusals(
    source_run: TrainRun, adapted: Path, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = source_run.file
    assert "does not exist" in fails(capsys, ["predict", model, target_images, "--adapter", tmp_path / "no"], 3)
    assert "is a dept model file" in fails(capsys, ["predict", model, target_images, "--adapter", model], 3)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(adapted.read_bytes()[:100])
    assert "not a readable safetensors" in fails(capsys, ["predict", model, target_images, "--adapter", cut], 3)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.png").write_bytes(b"")
    assert "can be decoded" in fails(capsys, ["predict", model, tmp_path / "bad"], 3)


@pytest.mark.parametrize("command", ["predict", "evaluate", "stats"])
def test_batches_and_workers_that_cannot_be(
    command: str, source_run: TrainRun, source_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [command, source_run.file, source_images, "--device", "cpu"]
    base += ["--out", tmp_path / "stats.safetensors"] if command == "stats" else []
    for count in (-3, 0):
        assert f"--batch must be at least 1, found {count}" in fails(capsys, [*base, "--batch", count], 2)
    assert "--workers must be at least 0, found -1" in fails(capsys, [*base, "--workers", "-1"], 2)


def test_evaluate(source_run: TrainRun, target_labelled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["evaluate", str(source_run.file), str(target_labelled), "--device", "cpu"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "images          12" in text and "mean per class" in text and "NLL" in text
    assert [line.split()[0] for line in text.splitlines()[-3:]] == ["blue", "green", "red"]
    assert main([*argv, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["n"] == 12 and set(scores) == {"n", "top1", "mean_per_class", "per_class", "nll", "ece", "ci95"}


def test_evaluate_with_other_classes(source_run: TrainRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_labelled(tmp_path / "i", 1)
    (root / "red").rename(root / "cat")
    text = fails(capsys, ["evaluate", source_run.file, root], 3)
    assert "[blue, cat, green]" in text and "[blue, green, red]" in text


# ---- info and methods ----


def test_info(source_run: TrainRun, adapted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(source_run.file)]) == 0
    text = capsys.readouterr().out
    assert "dept model" in text and "vit_tiny_patch16_224" in text and "projections" in text and "backbone" in text
    assert main(["info", str(adapted), "--json"]) == 0
    meta = json.loads(capsys.readouterr().out)
    assert meta["kind"] == "adapter" and meta["tensors"]["prompts"] == [2, 3, 32]


def test_info_of_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.bin").write_bytes(b"abc")
    assert "not a readable safetensors file" in fails(capsys, ["info", tmp_path / "x.bin"], 3)


def test_methods(capsys: pytest.CaptureFixture[str]) -> None:
    from dept import methods

    assert main(["methods"]) == 0
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert sorted(lines) == methods.available()
    assert lines[-2:] == methods.available("train") and lines[-8:-2] == methods.available("uda")
    for name in methods.available():
        assert main(["methods", name]) == 0
        text = capsys.readouterr().out
        assert "Cost:" in text and "batch " in text
    assert "preset paper: w_class=0.0" in (main(["methods", "dept"]) or capsys.readouterr().out)
    assert "There is no method 'x'" in fails(capsys, ["methods", "x"], 2)


# ---- small parts ----


def test_table() -> None:
    lines = table(["name", "n"], [["a", "10"], ["long name", "9"]]).splitlines()
    assert lines == ["name        n", "---------  --", "a          10", "long name   9"]


def test_a_missing_data_folder_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEPT_DATA", raising=False)
    assert main(["bench", "pacs-mini", "--results", str(tmp_path / "results"), "--work", str(tmp_path / "work")]) == 2
    assert capsys.readouterr().err.count("holds the data sets") == 1
    gone = str(tmp_path / "gone")
    assert main(["bench", "pacs-mini", "--data", gone, "--results", str(tmp_path / "results")]) == 3
    assert capsys.readouterr().err.count("does not exist") == 1

"""`dept convert` without a word about the architecture, and `dept train` from weights of other libraries."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torchvision.models.vision_transformer import VisionTransformer

from dept.cli.main import main
from dept.models.files import load
from foreign_models import config_of, dinov2_tensors, folder, vit_tensors
from support import CLASSES, PROJECTION, scramble

SMALL = ["--batch", "4", "--epochs", "1", "--device", "cpu"]
HEADS = [word for name, value in PROJECTION.items() for word in (f"--{name.replace('_', '-')}", str(value))]
LABELS = {str(number): name for number, name in enumerate(CLASSES)}
EVA = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2}


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    """A folder as transformers writes it."""
    return folder(tmp_path / "vit", vit_tensors(), config_of("vit", id2label=LABELS))


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    return tmp_path / "classes.txt"


def fails(capsys: pytest.CaptureFixture[str], argv: list[Any], code: int) -> str:
    capsys.readouterr()
    assert main([str(word) for word in argv]) == code
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    return err


def test_a_folder_says_everything(vit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.safetensors"
    assert main(["convert", str(vit), "--out", str(out)]) == 0
    text, said = capsys.readouterr()
    assert f"dept adapt {out} NEW_IMAGES" in text and f"dept stats {out} SOURCE" in text
    assert "Not known without labelled source images: class shares" in text
    assert "num_heads=4" in said and "from a transformers vit checkpoint" in said and "--mean" not in said
    model = load(out)
    assert model.classes == CLASSES and model.card.preprocess.interpolation == "bicubic"
    origin = model.card.history["converted"]
    assert origin["file"] == "model.safetensors" and len(origin["sha256"]) == 64
    assert "is a dept file already" in fails(capsys, ["convert", out, "--out", tmp_path / "x.safetensors"], 2)


def test_flags_win_over_the_folder(vit: Path, classes: Path, tmp_path: Path) -> None:
    classes.write_text("a\nb\nc\n")
    out = tmp_path / "model.safetensors"
    words = ["--classes", classes, "--mean", "0", "0", "0", "--rule", "shorter", "--interpolation", "bilinear",
             "--timm", '{"num_heads": 2}']  # fmt: skip
    assert main(["convert", str(vit), "--out", str(out), *map(str, words)]) == 0
    model = load(out)
    pre = model.card.preprocess
    assert model.classes == ("a", "b", "c") and model.card.options["num_heads"] == 2
    assert (pre.mean, pre.rule, pre.interpolation, pre.resize) == ((0.0, 0.0, 0.0), "shorter", "bilinear", 40)


def test_what_is_missing_is_asked_for(classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", tmp_path / "model.safetensors"]
    theirs = VisionTransformer(32, 8, 2, 1, 64, 96, num_classes=3)
    torch.save(theirs.state_dict(), tmp_path / "tv.pth")
    assert "3 classes but not their names" in fails(capsys, ["convert", tmp_path / "tv.pth", *out], 2)
    words = ["convert", tmp_path / "tv.pth", "--classes", "imagenet", *out]
    assert "3 outputs, but there are 1000 class names" in fails(capsys, words, 3)
    save_file(timm.create_model("eva02_tiny_patch14_224", **EVA).state_dict(), tmp_path / "eva.safetensors")
    words = ["convert", tmp_path / "eva.safetensors", "--classes", classes, *out]
    assert "Give its timm name as --arch" in fails(capsys, words, 3)
    assert "does not fit 'resnet18'" in fails(capsys, [*words, "--arch", "resnet18"], 3)
    assert "a folder without model.safetensors" in fails(capsys, ["convert", tmp_path, *out], 3)
    assert "named hf-hub:USER/REPO" in fails(capsys, ["convert", "hf-hub:model", *out], 2)
    assert not (tmp_path / "model.safetensors").exists()


def test_a_head_on_cls_and_mean_is_said_to_be_one(
    classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside timm's names nothing says what a head twice as wide reads."""
    theirs, images = timm.create_model("vit_tiny_patch16_224", num_classes=0, **EVA), torch.randn(2, 3, 32, 32)
    scramble(theirs)
    weight = 0.2 * torch.randn(3, 64)
    save_file({**theirs.state_dict(), "linear_head.weight": weight}, tmp_path / "lc.safetensors")
    out = tmp_path / "model.safetensors"
    words = ["convert", str(tmp_path / "lc.safetensors"), "--classes", str(classes), "--out", str(out)]
    heads = {"num_heads": 2}
    said = fails(capsys, [*words, "--timm", json.dumps(heads)], 3)
    assert "reads 64 features, but the model gives out 32. If it reads CLS" in said and "--timm" in said
    assert main([*words, "--timm", json.dumps({**heads, "cls_and_mean": True})]) == 0
    with torch.no_grad():
        tokens = theirs.forward_features(images)
        expected = torch.cat([tokens[:, 0], tokens[:, 1:].mean(dim=1)], dim=1) @ weight.T
        torch.testing.assert_close(load(out)(images), expected, rtol=0, atol=1e-5)
    argv = ["convert", str(tmp_path / "lc.safetensors"), "--classes", str(classes), "--arch", "resnet18", "--timm",
            '{"cls_and_mean": true}', "--out", str(tmp_path / "x.safetensors")]  # fmt: skip
    assert "cls_and_mean needs a VisionTransformer" in fails(capsys, argv, 2)


@pytest.mark.parametrize("method", ["dept", "dept+", "tent"])
def test_dinov2_is_adapted(method: str, target_images: Path, tmp_path: Path) -> None:
    """Its features are twice as wide as its tokens: prompts and projections have the width of tokens."""
    source = folder(tmp_path / "dinov2", dinov2_tensors(), config_of("dinov2", id2label=LABELS))
    out, run = tmp_path / "model.safetensors", tmp_path / "run"
    assert main(["convert", str(source), "--out", str(out)]) == 0
    prompts = [] if method == "tent" else ["--stages", "2", "--prompts", "3"]
    words = ["adapt", str(out), str(target_images), "--method", method, "--accept", "--out", str(run), *prompts]
    assert main([*words, *SMALL, *(HEADS if method == "dept" else [])]) == 0
    adapted = load(out, adapter=run / "adapter.safetensors")
    assert adapted.head.in_features == 128
    assert adapted.prompts is None or adapted.prompts.shape == (2, 3, 64)


def test_imagenet_names(tmp_path: Path) -> None:
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 1, "num_heads": 1}
    save_file(timm.create_model("vit_tiny_patch16_224", **small).state_dict(), tmp_path / "w.safetensors")
    out = tmp_path / "model.safetensors"
    assert main(["convert", str(tmp_path / "w.safetensors"), "--classes", "imagenet", "--out", str(out)]) == 0
    assert len(load(out).classes) == 1000 and load(out).classes[0] == "n01440764"


def test_an_eva_model_is_adapted_by_the_printed_command(
    classes: Path, target_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """DINOv3 can be prompted; rotations go with the tokens that student and teacher share."""
    theirs = timm.create_model("vit_small_patch16_dinov3", num_classes=3, **EVA)
    scramble(theirs)
    torch.save({"state_dict": {f"model.{n}": t for n, t in theirs.state_dict().items()}}, tmp_path / "last.ckpt")
    out, run = tmp_path / "model.safetensors", tmp_path / "run"
    words = ["--arch", "vit_small_patch16_dinov3", "--timm", json.dumps(EVA), "--classes", classes, "--out", out]
    assert main(["convert", str(tmp_path / "last.ckpt"), *map(str, words)]) == 0
    printed = next(line for line in capsys.readouterr().out.splitlines() if "dept adapt" in line)
    command = shlex.split(printed.split("dept ", 1)[1])
    command[command.index("NEW_IMAGES")], command[command.index("runs/site")] = str(target_images), str(run)
    command += ["--method", "dept", "--accept", "--stages", "2", "--prompts", "3"]
    assert main([*command, *SMALL, *HEADS]) == 0
    assert "`dept stats MODEL SOURCE --card` adds that to the file" in capsys.readouterr().out
    adapted = load(out, adapter=run / "adapter.safetensors")
    assert adapted.prompts is not None and adapted.prompts.shape == (2, 3, 32)


def test_training_recognises_its_weights(
    source_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = folder(tmp_path / "dinov2", dinov2_tensors(), config_of("dinov2"))
    argv = ["train", str(source_images), "--weights", str(weights), "--out", str(tmp_path / "run"), "--stages", "2",
            "--prompts", "3", *SMALL, *HEADS]  # fmt: skip
    assert main(argv) == 0
    said = capsys.readouterr().err
    assert "Architecture: vit_base_patch16_224 with embed_dim=64" in said and "cls_and_mean=True" in said
    model = load(tmp_path / "run" / "model.safetensors")
    assert model.card.options["init_values"] == 1e-5 and model.card.preprocess.mean == (0.4, 0.5, 0.6)

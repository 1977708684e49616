from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dept.io import read_tensors, write_tensors
from dept.methods.ttt import TTT, rotated
from dept.models.files import load_model, save_model
from dept.models.model import Model
from support import moved, random_batch, same_bits, scramble, state_of, tiny_model


@pytest.fixture
def taught() -> Model:
    """A model with a rotation head."""
    model = tiny_model()
    model.add_auxiliary(4, "rotation")
    scramble(model, scale=0.2)
    return model


def test_rotation_by_hand() -> None:
    image = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    images = image.expand(4, 1, 2, 2).clone()
    turned = rotated(images, torch.arange(4))
    assert turned.flatten(1).tolist() == [[1, 2, 3, 4], [2, 4, 1, 3], [4, 3, 2, 1], [3, 1, 4, 2]]
    assert torch.equal(images, image.expand(4, 1, 2, 2))


def test_loss_against_single_images(taught: Model) -> None:
    method = TTT(taught, seed=3)
    batch = random_batch("w", 6)
    turns = torch.randint(4, (6,), generator=torch.Generator().manual_seed(3)).tolist()
    assert len(set(turns)) > 1
    total = 0.0
    for image, turn in zip(batch.views[0], turns, strict=True):
        for _ in range(turn):
            image = image.transpose(-2, -1).flip(-2)  # one right angle anticlockwise
        logits = taught.auxiliary(taught.read(image[None]).features)
        total += float(F.cross_entropy(logits, torch.tensor([turn])).detach()) / 6
    assert float(method.loss(batch)["rotation"].detach()) == pytest.approx(total, rel=1e-4)


def test_encoder_and_rotation_head_move_classifier_stays(taught: Model) -> None:
    before = state_of(taught)
    method = TTT(taught)
    method.step(random_batch("w"))
    names = moved(before, taught)
    assert {"auxiliary.weight", "prompts", "backbone.patch_embed.proj.weight"} <= names
    assert not any(name.startswith("head.") for name in names)
    assert not any(name.startswith("auxiliary.") for name in method.adapter().tensors)
    method.reset()
    assert moved(before, taught) == set()
    norm = TTT(taught, TTT.Config(tune="norm"))
    assert all("norm" in name or name.startswith("auxiliary.") for name in norm.trained_names)


def test_online_prediction_is_after_the_update(taught: Model) -> None:
    method = TTT(taught, TTT.Config(lr=0.1))
    test, batch = torch.randn(4, 3, 32, 32), random_batch("w")
    before = taught(test).detach()
    logits, _ = method.observe(test, batch)
    assert torch.equal(logits, taught(test).detach()) and not torch.equal(logits, before)


def test_state_holds_the_draws_to_come(taught: Model) -> None:
    method = TTT(taught)
    method.step(random_batch("w", seed=1))
    state = {n: t.clone() for n, t in method.state_dict().items()}
    method.step(random_batch("w", seed=2))
    end = {n: t.clone() for n, t in method.state_dict().items()}
    method.load_state_dict(state)
    method.step(random_batch("w", seed=2))
    assert same_bits(end, method.state_dict())


def test_older_files_do_not_say_what_their_head_was_taught(taught: Model, tmp_path: Path) -> None:
    path = save_model(taught, tmp_path / "model.safetensors")
    tensors, meta = read_tensors(path, "model")
    assert meta.pop("auxiliary_task") == "rotation"
    write_tensors(path, tensors, meta)
    TTT(load_model(path))


def test_without_a_rotation_head_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"had no second task\. Train it by `dept train` with aux=rotation"):
        TTT(tiny_model())
    model = tiny_model()
    model.add_auxiliary(4, "hypothesis")
    with pytest.raises(ValueError, match=r"'rotation'\. That of this model only included hypothesis"):
        TTT(model)

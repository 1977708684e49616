from __future__ import annotations

import pytest
import torch
from torch import nn

from dept.methods.neo import NEO, shrinkage
from dept.models.model import Model
from support import moved, random_batch, scramble, state_of, tiny_model


@pytest.fixture
def sharp() -> Model:
    model = tiny_model()
    scramble(model, scale=0.2)
    return model


def test_shrinkage() -> None:
    assert [shrinkage(n, 16) for n in (0, 1, 15, 16, 48)] == [0, 0, 0, 0.5, 0.75]
    assert shrinkage(1, 0) == 1


def test_the_first_images_are_left_as_they_are(sharp: Model) -> None:
    """A single image minus its own mean is nothing: below n₀ = 16 the source model answers."""
    few, enough = random_batch("t", 15, seed=1), random_batch("t", 1, seed=2)
    source = sharp(few.views[0]).detach(), sharp(enough.views[0]).detach()
    method = NEO(sharp)
    torch.testing.assert_close(method.observe(few.views[0], few)[0], source[0])
    assert not torch.allclose(method.observe(enough.views[0], enough)[0], source[1])


def test_logits_are_those_of_recentred_features(sharp: Model) -> None:
    batches = [random_batch("t", size, seed=size) for size in (3, 5)]
    features = torch.cat([sharp.read(b.views[0]).features for b in batches]).detach().double()
    weight, bias = sharp.head.weight.detach().double(), sharp.head.bias.detach().double()
    method = NEO(sharp, NEO.Config(prior_count=4.0))
    method.observe(batches[0].views[0], batches[0])
    logits, _ = method.observe(batches[1].views[0], batches[1])
    center = features.mean(dim=0) * 8 / (8 + 4)  # all 8 images so far, the current ones included
    torch.testing.assert_close(logits.double(), (features[3:] - center) @ weight.T + bias, rtol=1e-4, atol=1e-4)


def test_the_continual_mean_forgets(sharp: Model) -> None:
    """0.9 of the old mean and 0.1 of the new batch; the first batch is the whole mean."""
    batches = [random_batch("t", size, seed=size) for size in (3, 5)]
    first, second = (sharp.read(b.views[0]).features.detach().mean(dim=0) for b in batches)
    method = NEO(sharp, NEO.preset("continual"))
    for batch in batches:
        method.observe(batch.views[0], batch)
    torch.testing.assert_close(method.mean, 0.9 * first + 0.1 * second)


def test_predict_uses_the_same_shift(sharp: Model) -> None:
    method = NEO(sharp)
    batch = random_batch("t", 16)
    logits, _ = method.observe(batch.views[0], batch)
    torch.testing.assert_close(method.predict(batch.views[0]), logits)


def test_only_the_bias_moves_and_one_forward_is_enough(sharp: Model) -> None:
    before, calls = state_of(sharp), []
    sharp.backbone.patch_embed.register_forward_hook(lambda *args: calls.append(1))
    method = NEO(sharp)
    batch = random_batch("t", 16)
    method.observe(batch.views[0], batch)
    assert moved(before, sharp) == {"head.bias"} and calls == [1]
    assert list(method.adapter().tensors) == ["head.bias"]
    method.reset()
    assert moved(before, sharp) == set() and method.seen == 0 and not method.mean.any()


def test_a_stream_that_goes_on_after_loading(sharp: Model) -> None:
    method = NEO(sharp)
    one, two = random_batch("t", seed=1), random_batch("t", seed=2)
    method.step(one)
    state = {n: t.clone() for n, t in method.state_dict().items()}
    method.step(two)
    end = sharp.head.bias.detach().clone()
    method.reset()
    method.load_state_dict(state)
    method.step(two)
    assert torch.equal(sharp.head.bias, end)


def test_first_image_alone_is_still_told_apart(sharp: Model) -> None:
    method = NEO(sharp)
    answers = []
    for seed in range(2):
        batch = random_batch("t", 1, seed=seed)
        answers.append(method.observe(batch.views[0], batch)[0])
        method.reset()
    assert not torch.allclose(answers[0], answers[1])


def test_before_leaves_the_batch_out(sharp: Model) -> None:
    batch = random_batch("t")
    expected = sharp(batch.views[0]).detach()
    logits, _ = NEO(sharp, NEO.Config(predict="before")).observe(batch.views[0], batch)
    assert torch.equal(logits, expected)


def test_a_head_without_bias_is_refused(sharp: Model) -> None:
    sharp.head = nn.Linear(sharp.head.in_features, 3, bias=False)
    with pytest.raises(ValueError, match="bias"):
        NEO(sharp)

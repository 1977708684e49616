from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from dept.core.bank import MemoryBank
from dept.core.batch_norm import batch_norms, training
from dept.methods.adacontrast import AdaContrast, KeyQueue, info_nce
from dept.models.model import Model
from support import (
    FixedPasses,
    moved,
    random_batch,
    same_bits,
    scramble,
    state_of,
    tiny_config,
    tiny_model,
    tiny_resnet,
)

SMALL = {"queue_size": 16, "batch": 4, "lr": 1e-3}


@pytest.fixture
def sharp() -> Model:
    model = tiny_model()
    scramble(model, scale=0.2)
    return model


def adacontrast(model: Model, **changes: object) -> AdaContrast:
    return AdaContrast(model, AdaContrast.Config(**{**SMALL, **changes}))  # type: ignore[arg-type]


def test_info_nce_by_hand() -> None:
    query = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    key, negatives = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    masked = info_nce(query, key, negatives, same=torch.tensor([[True, False]]), temperature=0.07)
    assert float(masked) == pytest.approx(6.2487e-7, rel=1e-4)
    unmasked = info_nce(query, key, negatives, same=torch.zeros(1, 2, dtype=torch.bool), temperature=0.07)
    assert float(unmasked) == pytest.approx(0.693147, abs=1e-5)


def test_info_nce_against_loops() -> None:
    query, key = torch.randn(3, 5).double(), F.normalize(torch.randn(3, 5).double(), dim=1)
    negatives, same = F.normalize(torch.randn(7, 5).double(), dim=1), torch.rand(3, 7) < 0.4
    rows = []
    for i in range(3):
        q = query[i] / query[i].norm()
        positive = math.exp(float(q @ key[i]) / 0.5)
        others = sum(math.exp(float(q @ negatives[j]) / 0.5) for j in range(7) if not same[i, j])
        rows.append(-math.log(positive / (positive + others)))
    assert float(info_nce(query, key, negatives, same=same, temperature=0.5)) == pytest.approx(sum(rows) / 3)


def test_all_negatives_masked_is_zero_with_finite_gradient() -> None:
    query = torch.randn(2, 3, requires_grad=True)
    loss = info_nce(query, query.detach(), torch.randn(4, 3), same=torch.ones(2, 4, dtype=torch.bool), temperature=0.07)
    (gradient,) = torch.autograd.grad(loss, query)
    assert float(loss.detach()) == 0.0 and bool(gradient.isfinite().all())


def test_queue_is_a_ring() -> None:
    queue = KeyQueue.random(5, 2, 3, torch.Generator().manual_seed(0))
    torch.testing.assert_close(queue.keys.norm(dim=1), torch.ones(5))
    assert int(queue.labels.min()) >= 0 and int(queue.labels.max()) < 3
    for first in (10, 12, 14):
        queue.write(torch.zeros(2, 2), torch.tensor([first, first + 1]))
    assert queue.labels.tolist() == [15, 11, 12, 13, 14] and queue.pointer == 1
    queue.write(torch.zeros(7, 2), torch.arange(20, 27))
    assert sorted(queue.labels.tolist()) == [22, 23, 24, 25, 26]


def test_terms_against_their_definitions(sharp: Model) -> None:
    method = adacontrast(sharp, ema=0.5)
    passes = FixedPasses(20, 4)
    method.begin(passes)
    batch = random_batch("wss", 4)
    # let student and momentum encoder differ
    with torch.no_grad():
        sharp.head.weight.add_(0.1)
        sharp.backbone.norm.bias.add_(0.1)
    old_keys, old_labels = method.queue.keys.clone(), method.queue.labels.clone()
    weak, query, key = batch.views
    assert method.bank is not None
    labels = method.bank.vote(sharp.read(weak).features.detach(), 10).argmax(dim=1)
    expected_momentum = {n: 0.5 * t + 0.5 * sharp.get_parameter(n) for n, t in method.momentum.tensors.items()}
    terms = {name: term.detach() for name, term in method.loss(batch).items()}
    for name, tensor in expected_momentum.items():
        torch.testing.assert_close(method.momentum.tensors[name], tensor.detach())
    output = sharp.read(query)
    keys = F.normalize(sharp.read(key, adapter=method.momentum).features, dim=1).detach()
    same = labels[:, None] == old_labels[None]
    contrast = info_nce(output.features, keys, old_keys, same=same, temperature=0.07)
    mean = output.logits.softmax(dim=1).mean(dim=0)
    torch.testing.assert_close(terms["pseudo_label"], F.cross_entropy(output.logits, labels).detach())
    torch.testing.assert_close(terms["contrast"], contrast.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(terms["class_diversity"], (mean * (mean + 1e-8).log()).sum().detach())


def test_queue_and_bank_after_a_step(sharp: Model) -> None:
    method = adacontrast(sharp, ema=0.5)
    method.begin(FixedPasses(20, 4))
    with torch.no_grad():
        sharp.head.bias.add_(torch.tensor([1.0, 0.0, -1.0]))
        sharp.get_parameter("backbone.norm.bias").add_(torch.randn(32))  # the momentum encoder is another one now
    batch = random_batch("wss", 4)
    method.step(batch)
    weak, _, key = batch.views
    assert method.bank is not None
    written = sharp.read(weak, adapter=method.momentum)
    torch.testing.assert_close(method.bank.features[:4], F.normalize(written.features, dim=1).detach())
    torch.testing.assert_close(method.bank.probabilities[:4], written.logits.softmax(dim=1).detach())
    keys = F.normalize(sharp.read(key, adapter=method.momentum).features, dim=1).detach()
    torch.testing.assert_close(method.queue.keys[:4], keys)
    assert method.queue.pointer == 4


def test_masks_use_labels_of_the_stored_keys(sharp: Model) -> None:
    """The released code writes the batch's labels into the queue before it masks the old keys."""
    method = adacontrast(sharp, queue_size=4)
    batch = random_batch("wss", 4)
    method.queue.labels[:] = method.pseudo_labels(batch.views[0])[:1]  # all the same: that row has no negatives
    stored = method.queue.labels.clone()
    method.loss(batch)
    assert torch.equal(method.queue.labels, stored)


def test_all_or_norm_only(sharp: Model) -> None:
    method = adacontrast(sharp)
    rates = {name: group.lr for group in method.groups for name in group.names}
    assert rates["head.weight"] == pytest.approx(1e-2) and rates["prompts"] == rates["backbone.norm.bias"] == 1e-3
    assert set(rates) == set(dict(sharp.named_parameters()))
    before = state_of(sharp)
    norm = AdaContrast(sharp, AdaContrast.Config(tune="norm", queue_size=8))
    norm.step(random_batch("wss"))
    assert moved(before, sharp) == set(norm.trained_names) and all("norm" in name for name in norm.trained_names)
    assert AdaContrast.preset("ln").tune == "norm"  # type: ignore[attr-defined]


def test_online_the_bank_grows_before_it_votes(sharp: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    votes: list[int] = []
    vote = MemoryBank.vote
    monkeypatch.setattr(MemoryBank, "vote", lambda bank, *rest: votes.append(len(bank)) or vote(bank, *rest))
    method = adacontrast(sharp, bank_warmup=8, bank_size=32, predict="after")
    for seed in range(4):
        batch = random_batch("twss", 4, seed=seed)
        logits, _ = method.observe(batch.views[0], type(batch)(batch.views[1:], batch.index))
        assert torch.equal(logits, sharp(batch.views[0]).detach())  # after the update
    assert votes == [8, 12] and method.bank is not None and len(method.bank) == 16
    online = AdaContrast.preset("online")
    assert online.schedule == "constant" and online.predict == "after"


def test_offline_a_bank_with_room_to_spare_votes_all_the_same(sharp: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    votes: list[int] = []
    vote = MemoryBank.vote
    monkeypatch.setattr(MemoryBank, "vote", lambda bank, *rest: votes.append(len(bank)) or vote(bank, *rest))
    method = adacontrast(sharp, bank_size=2000)
    method.begin(FixedPasses(10))
    method.step(random_batch("wss"))
    assert votes == [10]


def test_reset_and_state_are_complete(sharp: Model) -> None:
    start = state_of(sharp)
    method = adacontrast(sharp)
    initial = {n: t.clone() for n, t in method.state_dict().items()}
    method.begin(FixedPasses(10, 4))
    method.step(random_batch("wss", seed=1))
    middle = {n: t.clone() for n, t in method.state_dict().items()}
    method.step(random_batch("wss", seed=2))
    end = {n: t.clone() for n, t in method.state_dict().items()}
    method.reset()
    assert same_bits(initial, method.state_dict()) and moved(start, sharp) == set()
    method.load_state_dict(middle)
    method.step(random_batch("wss", seed=2))
    assert same_bits(end, method.state_dict())


def test_running_statistics_are_those_of_the_students_passes() -> None:
    """Batch norm: the weak and the query view pass through the student, and only they move its statistics."""
    model, twin = tiny_resnet().eval(), tiny_resnet().eval()
    batch = random_batch("wss", 8)
    AdaContrast(model, tiny_config(AdaContrast)).step(batch)
    with torch.no_grad(), training(batch_norms(twin).values()):
        for view in batch.views[:2]:
            twin(view)
    ours, expected = ({n: t for n, t in state_of(m).items() if "running" in n} for m in (model, twin))
    torch.testing.assert_close(ours, expected)

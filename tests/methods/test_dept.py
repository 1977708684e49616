"""DePT itself: every term recomputed slowly, every switch, and the order of what happens in a step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dept.core import losses
from dept.core.adapter import Adapter
from dept.data.loader import Batch
from dept.methods.base import Progress
from dept.methods.dept import DePT
from dept.models.files import load_model
from dept.models.model import Model, fingerprint
from support import FixedPasses, moved, random_batch, same_bits, slow_projection, state_of, tiny_config, tiny_model


def make(model: Model, *, seed: int = 0, **changes: Any) -> DePT:
    return DePT(model, tiny_config(DePT, **changes), seed=seed)


def begun(model: Model, **changes: Any) -> DePT:
    method = make(model, **changes)
    method.begin(FixedPasses())
    method.at(Progress(0, 8, 0))
    return method


def step(method: DePT, number: int) -> dict[str, float]:
    method.at(Progress(number, 8, 0))
    return method.step(random_batch("wss", seed=number))


# ---- the loss ----


def test_every_term_recomputed(source_model: Model) -> None:
    """At the first step teacher = student = source model and the centre is 0."""
    method = begun(source_model)
    batch = random_batch("wss")
    with torch.no_grad():
        weak, s1, s2 = (source_model.read(view, aggregated=True) for view in batch.views)
        cosines = F.cosine_similarity(weak.features[:, None], method.bank.features[None], dim=-1)
        nearest = cosines.topk(2, dim=1).indices  # k = 10, capped at a fifth of the 10 entries
        labels = method.bank.probabilities[nearest].mean(dim=1).argmax(dim=1)
        heads = list(source_model.projections)
        teacher_cls, student_cls = slow_projection(heads[-1], s1.features), slow_projection(heads[-1], s2.features)
        target = (teacher_cls / 0.07).softmax(dim=1)
        weights = torch.tensor([1.0, 2.0]).softmax(dim=0)
        consistency = diversity = torch.zeros(())
        for weight, head, student, teacher in zip(weights, heads, s2.prompts, s1.prompts, strict=True):
            a, b = slow_projection(head, student), slow_projection(head, teacher)
            consistency = consistency + weight * (1 - F.cosine_similarity(a, b, dim=-1)).mean()
            pairs = 1 - F.cosine_similarity(a[:, :, None], a[:, None], dim=-1)
            diversity = diversity + weight * pairs.mean()
        mean = s2.logits.softmax(dim=1).mean(dim=0)
        expected = {
            "pseudo_label": -s2.logits.log_softmax(dim=1)[range(4), labels].mean(),
            "cls": 0.1 * -(target * (student_cls / 0.1).log_softmax(dim=1)).sum(dim=1).mean(),
            "prompt": 0.1 * consistency,
            "prompt_diversity": -0.05 * diversity,
            "class_diversity": (mean * mean.log()).sum(),
        }
    terms = method.loss(batch)
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        assert float(terms[name].detach()) == pytest.approx(float(value), abs=2e-6), name
    assert torch.allclose(method.distillation.center, 0.1 * teacher_cls.mean(dim=0), atol=1e-7)


def test_paper_preset_uses_sums_and_uniform_weights(source_model: Model) -> None:
    config = DePT.preset("paper")
    assert (config.w_class, config.w_div, config.reduction) == (0.0, 0.005, "sum")
    assert (config.stage_weighting, config.bank_refresh) == ("uniform", 0)
    assert DePT.preset("official") == DePT.Config()
    batch = random_batch("wss")
    method = begun(source_model, w_class=0.0, w_div=0.005, reduction="sum", stage_weighting="uniform")
    with torch.no_grad():
        s1, s2 = (source_model.read(view, aggregated=True) for view in batch.views[1:])
        prompt = spread = 0.0
        for head, student, teacher in zip(source_model.projections, s2.prompts, s1.prompts, strict=True):
            a, b = (F.normalize(slow_projection(head, x), dim=-1) for x in (student, teacher))
            prompt += float((a - b).square().sum(dim=(1, 2)).mean()) / 2  # |a - b|² = 2 - 2 cos; 1/M
            spread += sum(float((1 - (a[:, i] * a[:, j]).sum(1)).mean()) for i in range(3) for j in range(i)) / 2
    terms = method.loss(batch)
    assert "class_diversity" not in terms
    assert float(terms["prompt"].detach()) == pytest.approx(0.1 * prompt, abs=1e-6)
    assert float(terms["prompt_diversity"].detach()) == pytest.approx(-0.005 * spread, abs=1e-6)


ALL_TERMS = {"pseudo_label", "cls", "prompt", "prompt_diversity", "class_diversity"}


@pytest.mark.parametrize(("change", "gone"), [
    ({"pseudo_labels": False}, "pseudo_label"),
    ({"w_cls": 0.0}, "cls"),
    ({"w_prompt": 0.0}, "prompt"),
    ({"w_div": 0.0}, "prompt_diversity"),
    ({"w_class": 0.0}, "class_diversity"),
    ({"bank": False}, None),
])  # fmt: skip
def test_each_switch_removes_its_term(source_model: Model, change: dict[str, Any], gone: str | None) -> None:
    method = begun(source_model, **change)
    terms = step(method, 0)
    assert terms.keys() - {"loss"} == ALL_TERMS - {gone}
    assert (method.bank is None) == ("bank" in change or "pseudo_labels" in change)


def test_weights_scale_their_terms(source_run: Any) -> None:
    plain = step(begun(load_model(source_run.file)), 0)
    changes = {"w_cls": 0.3, "w_prompt": 0.2, "w_div": 0.5, "w_class": 2.0}
    scaled = step(begun(load_model(source_run.file), **changes), 0)
    factors = {"pseudo_label": 1, "cls": 3, "prompt": 2, "prompt_diversity": 10, "class_diversity": 2}
    for name, factor in factors.items():
        assert scaled[name] == pytest.approx(factor * plain[name], rel=1e-4), name


def test_without_self_supervision_no_projections_are_made(model: Model) -> None:
    method = begun(model, w_cls=0.0, w_prompt=0.0, w_div=0.0)
    assert len(model.projections) == 0 and len(method.groups) == 1
    assert step(method, 0).keys() == {"loss", "pseudo_label", "class_diversity"}


# ---- teacher ----


def test_ema_comes_before_the_teachers_forward(source_model: Model) -> None:
    """Step 0 leaves the teacher as it was; step 1 begins by moving it by 1 % towards the student of step 0."""
    method = begun(source_model, lr=0.1)
    start = Adapter.of(source_model, method.trained_names)
    step(method, 0)
    assert same_bits(method.distillation.teacher.tensors, start.tensors)
    student = Adapter.of(source_model, method.trained_names)
    seen: list[dict[str, Tensor]] = []
    teach = method.distillation.teach

    def spy(images: Tensor, *, aggregated: bool) -> Any:
        seen.append(method.distillation.teacher.clone().tensors)
        return teach(images, aggregated=aggregated)

    method.distillation.teach = spy  # type: ignore[method-assign]
    step(method, 1)
    assert len(seen) == 1
    for name, tensor in seen[0].items():
        assert torch.allclose(tensor, 0.99 * start.tensors[name] + 0.01 * student.tensors[name], atol=1e-7), name
    assert same_bits(seen[0], method.distillation.teacher.tensors)


def test_teacher_differs_from_student_and_holds_no_gradient(source_model: Model) -> None:
    method = begun(source_model)
    for number in range(3):
        step(method, number)
    teacher = method.distillation.teacher.tensors
    assert {"prompts", "head.weight", "head.bias"} <= teacher.keys()
    assert any(name.startswith("projections.") for name in teacher)
    for name, tensor in teacher.items():
        assert not tensor.requires_grad and tensor.grad is None
        if name != "projections.0.prototypes.parametrizations.weight.original0":
            assert not torch.equal(tensor, source_model.get_parameter(name)), name


def test_centre_moves_by_the_teachers_mean(source_model: Model) -> None:
    method = begun(source_model)
    step(method, 0)
    first = method.distillation.center.clone()
    batch = random_batch("wss", seed=1)
    method.at(Progress(1, 8, 0))
    method.loss(batch)
    with torch.no_grad():
        output = method.distillation.teach(batch.views[1], aggregated=True)
        projected = method.distillation.project(output, teacher=True).cls
    assert torch.allclose(method.distillation.center, 0.9 * first + 0.1 * projected.mean(dim=0), atol=1e-6)


def test_teacher_temperature_follows_the_epoch(source_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    method = make(source_model, teacher_warmup_epochs=3, pseudo_labels=False)
    values: list[float] = []
    dino = losses.dino
    monkeypatch.setattr(losses, "dino", lambda *a, **k: values.append(k["teacher_temperature"]) or dino(*a, **k))
    for epoch in range(4):
        method.at(Progress(epoch, 8, epoch))
        method.loss(random_batch("wss"))
    assert values == pytest.approx([0.04, 0.055, 0.07, 0.07])


# ---- bank and pseudo-labels ----


def test_bank_is_filled_before_the_first_step_with_the_source_model(source_model: Model) -> None:
    passes = FixedPasses()
    images = torch.cat([batch.views[0] for batch in passes()])
    with torch.no_grad():
        output = source_model.read(images)
    method = make(source_model)
    assert method.bank is None
    method.begin(passes)
    assert len(method.bank) == 10
    ours = sorted(method.bank.probabilities.tolist())
    assert torch.allclose(torch.tensor(ours), torch.tensor(sorted(output.logits.softmax(1).tolist())), atol=1e-6)
    similarity = F.normalize(output.features, dim=1) @ method.bank.features.T
    assert torch.allclose(similarity.max(dim=1).values, torch.ones(10), atol=1e-5)
    assert similarity.argmax(dim=1).tolist() != list(range(10)), "slots must be in random order"


def test_a_smaller_bank(source_model: Model) -> None:
    method = begun(source_model, bank_size=6)
    assert len(method.bank) == 6
    step(method, 0)
    step(method, 1)
    assert method.bank.pointer == 2


def test_the_teachers_weak_view_enters_the_bank_after_the_step(source_model: Model) -> None:
    method = begun(source_model)
    step(method, 0)
    before = method.bank.features.clone()
    batch = random_batch("wss", seed=1)
    method.at(Progress(1, 8, 0))
    method.step(batch)
    with torch.no_grad():
        teacher = method.distillation.teach(batch.views[0], aggregated=False)
        student = source_model.read(batch.views[0])
    assert torch.allclose(method.bank.features[4:8], F.normalize(teacher.features, dim=1), atol=1e-5)
    assert torch.allclose(method.bank.probabilities[4:8], teacher.logits.softmax(dim=1), atol=1e-5)
    assert not torch.allclose(method.bank.probabilities[4:8], student.logits.softmax(dim=1), atol=1e-5)
    assert torch.equal(method.bank.features[8:], before[8:]) and torch.equal(method.bank.features[:4], before[:4])
    assert method.bank.pointer == 8


def test_pseudo_label_without_bank_is_the_students_argmax(source_model: Model) -> None:
    method = begun(source_model, bank=False)
    for number in range(2):
        step(method, number)
    weak = torch.randn(6, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(method.pseudo_labels(weak), source_model(weak).argmax(dim=1))


def test_pseudo_label_with_bank_is_its_vote(source_model: Model) -> None:
    method = begun(source_model)
    method.bank.probabilities = torch.eye(3)[torch.full((10,), 2)]  # everybody votes for class 2
    assert method.pseudo_labels(torch.randn(5, 3, 32, 32)).tolist() == [2] * 5


def test_bank_is_refreshed_every_so_many_epochs(source_model: Model) -> None:
    method = begun(source_model, bank_refresh=2)
    passes = FixedPasses()
    fills: list[int] = []
    method._fill = lambda _: fills.append(epoch)  # type: ignore[method-assign]
    for epoch in range(5):
        method.refresh(passes, epoch)
    assert fills == [1, 3]
    never = begun(tiny_model(), bank_refresh=0)
    never._fill = lambda _: pytest.fail("refreshed")  # type: ignore[method-assign]
    never.refresh(passes, 0)


def test_refresh_uses_the_teacher(source_model: Model) -> None:
    method = begun(source_model, lr=0.1)
    for number in range(3):
        step(method, number)
    passes = FixedPasses()
    method.refresh(passes, 0)
    images = torch.cat([batch.views[0] for batch in passes()])
    teacher = method.distillation.teach(images, aggregated=False)
    assert torch.allclose(
        torch.tensor(sorted(method.bank.probabilities.tolist())),
        torch.tensor(sorted(teacher.logits.softmax(dim=1).tolist())),
        atol=1e-5,
    )


def test_readouts(source_model: Model) -> None:
    method = make(source_model)
    images = torch.randn(3, 3, 32, 32)
    assert method.readouts(images).keys() == {"student", "teacher"}
    method.begin(FixedPasses())
    for number in range(2):
        step(method, number)
    readouts = method.readouts(images)
    assert readouts.keys() == {"student", "teacher", "student_knn", "teacher_knn"}
    assert not torch.equal(readouts["student"], readouts["teacher"])


# ---- what moves ----


def test_prompt_tuning_leaves_the_backbone(source_model: Model) -> None:
    method = begun(source_model)
    before, sha = state_of(source_model), fingerprint(source_model)
    step(method, 0)
    changed = moved(before, source_model)
    assert fingerprint(source_model) == sha
    assert {"prompts", "head.weight", "head.bias"} <= changed
    assert all(name in ("prompts", "head.weight", "head.bias") or name.startswith("projections.") for name in changed)
    assert set(method.adapter().tensors) == {"prompts", "head.weight", "head.bias"}
    assert method.counts()["tunable_model"] == 2 * 3 * 32 + 3 * 32 + 3
    assert method.counts()["tunable_total"] == method.counts()["tunable_model"] + 2 * (33 * 32 + 33 * 16 + 16 * 32)


def test_tuning_everything(source_model: Model) -> None:
    method = begun(source_model, tune="all", backbone_lr=0.01)
    before = state_of(source_model)
    assert [group.lr for group in method.groups] == [5e-3, 0.01, 5e-3]
    for number in range(2):
        step(method, number)
    changed = moved(before, source_model)
    assert {"backbone.blocks.0.attn.qkv.weight", "backbone.cls_token", "backbone.norm.weight", "prompts"} <= changed
    teacher = method.distillation.teacher.tensors["backbone.norm.weight"]
    assert not torch.equal(teacher, source_model.backbone.norm.weight)
    # The teacher runs with its own backbone, and leaves the student's in place.
    images, own = torch.randn(2, 3, 32, 32), source_model.backbone.norm.weight.detach().clone()
    taught = method.distillation.teach(images, aggregated=False).logits
    assert torch.equal(source_model.backbone.norm.weight, own)
    method.distillation.teacher.copy_to(source_model)
    assert torch.allclose(source_model(images).detach(), taught, atol=1e-5)


def test_optimiser_is_the_authors(source_model: Model) -> None:
    method = make(source_model)
    assert isinstance(method.optimizer, torch.optim.SGD)
    for group in method.optimizer.param_groups:
        assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.9, True, 1e-4)
        assert group["lr"] == 5e-3
    assert [group.clip_norm for group in method.groups] == [1.0, 0.0]  # projection heads are not clipped


def test_a_recentred_start_is_neos(source_model: Model) -> None:
    """Before the first step student and teacher see h - m, m the mean over all images, and the bank is filled so."""
    images = torch.cat([batch.views[0] for batch in FixedPasses()()])
    output = source_model.read(images)
    centred = output.features - output.features.mean(dim=0)
    expected = (centred @ source_model.head.weight.T + source_model.head.bias).detach()
    method = make(source_model, recentre=True)
    method.begin(FixedPasses())
    torch.testing.assert_close(source_model(images).detach(), expected)
    taught = method.distillation.teach(images, aggregated=False).logits
    torch.testing.assert_close(taught, expected)
    assert method.bank is not None
    torch.testing.assert_close(
        method.bank.state_dict()["probabilities"].sort(dim=0).values, expected.softmax(dim=1).sort(dim=0).values
    )


def test_prompts_and_head_are_clipped_and_projections_are_not(source_model: Model) -> None:
    method = begun(source_model, w_cls=1e5, w_class=1e5)
    step(method, 0)
    head = [source_model.get_parameter(name) for name in ("head.weight", "head.bias")]
    for gradient in (*(parameter.grad for parameter in head), *source_model.prompts.grad):  # of every stage
        assert float(gradient.norm()) == pytest.approx(1.0, abs=1e-4)
    largest = max(float(p.grad.norm()) for p in source_model.projections.parameters() if p.grad is not None)
    assert largest > 10


def test_one_step_by_hand(source_model: Model) -> None:
    """Nesterov's first step: p - lr (1 + momentum) (g + wd p), with g clipped."""
    method = begun(source_model)
    start = source_model.head.weight.detach().clone()
    step(method, 0)
    gradient = source_model.head.weight.grad + 1e-4 * start
    assert torch.allclose(source_model.head.weight, start - 5e-3 * 1.9 * gradient, atol=1e-7)


# ---- projections, presets, ratio ----


def test_projections_of_the_source_model_are_reused(source_model: Model) -> None:
    before = {name: tensor.clone() for name, tensor in source_model.projections.state_dict().items()}
    make(source_model, seed=5)
    assert same_bits(before, dict(source_model.projections.state_dict()))


def test_fresh_projections_depend_on_the_seed_only() -> None:
    def fresh(seed: int, noise: int) -> dict[str, Tensor]:
        torch.manual_seed(noise)
        model = tiny_model()
        DePT(model, tiny_config(DePT), seed=seed)
        return dict(model.projections.state_dict())

    assert same_bits(fresh(1, 1), fresh(1, 2))
    assert not torch.equal(fresh(1, 1)["0.mlp.0.weight"], fresh(2, 1)["0.mlp.0.weight"])


def test_defaults_are_the_released_ones() -> None:
    config = DePT.Config()
    assert (config.w_cls, config.w_prompt, config.w_div, config.w_class) == (0.1, 0.1, 0.05, 1.0)
    assert (config.lr, config.batch, config.epochs, config.schedule, config.clip) == (5e-3, 128, 15, "cosine", 1.0)
    assert (config.ema, config.neighbours, config.bank_size, config.bank_refresh) == (0.99, 10, 0, 1)
    assert (config.student_temperature, config.teacher_temperature, config.center_momentum) == (0.1, 0.07, 0.9)
    assert (config.projection_hidden, config.projection_bottleneck, config.projection_out) == (2048, 256, 2048)
    assert (config.reduction, config.stage_weighting, config.weight_decay) == ("mean", "softmax", 1e-4)


@pytest.mark.parametrize(
    ("ratio", "epochs", "refresh"), [(1.0, 15, 1), (0.5, 30, 2), (0.1, 150, 10), (0.01, 1500, 100)]
)
def test_scaling_with_the_share_of_images(ratio: float, epochs: int, refresh: int) -> None:
    scaled = DePT.scaled(DePT.Config(), ratio)
    assert (scaled.epochs, scaled.bank_refresh) == (epochs, refresh)
    assert DePT.scaled(DePT.preset("paper"), ratio).bank_refresh == 0


def test_online_preset_has_no_bank_and_no_decay() -> None:
    config = DePT.preset("online")
    assert (config.bank, config.schedule, config.predict) == (False, "constant", "after")


def test_a_model_without_prompts_tunes_the_head(model: Model) -> None:
    plain = tiny_model(stages=0)
    method = begun(plain)
    terms = step(method, 0)
    assert terms.keys() == {"loss", "pseudo_label", "cls", "class_diversity"}
    assert set(method.adapter().tensors) == {"head.weight", "head.bias"}


def test_descent_lowers_the_loss_on_a_fixed_batch(source_model: Model) -> None:
    method = begun(source_model, ema=1.0, center_momentum=1.0, bank=False, lr=0.02)
    batch: Batch = random_batch("wss", 6)
    values = []
    for _ in range(12):
        method.at(Progress(0, 8, 0))
        values.append(method.step(batch)["loss"])
    assert all(math.isfinite(value) for value in values) and values[-1] < values[0] - 0.02


def test_lean_labels_come_from_the_teachers_weak_view(source_run: Any) -> None:
    """One forward fewer: the teacher's features are looked up in the bank instead of the student's."""
    model = load_model(source_run.file)
    method = begun(model, lean=True, lr=0.1, ema=0.5)
    step(method, 0)
    batch = random_batch("wss", seed=1)
    method.at(Progress(1, 8, 0))
    bank = method.bank.features.clone(), method.bank.probabilities.clone()
    term = float(method.loss(batch)["pseudo_label"].detach())
    with torch.no_grad():
        teacher = method.distillation.teach(batch.views[0], aggregated=False)
        similarity = F.normalize(teacher.features, dim=1) @ bank[0].T
        labels = bank[1][similarity.topk(2, dim=1).indices].mean(dim=1).argmax(dim=1)
        student = model(batch.views[2]).log_softmax(dim=1)
    assert term == pytest.approx(float(-student[range(4), labels].mean()), abs=1e-5)
    forwards = []
    read = model.read
    model.read = lambda *a, **k: forwards.append(1) or read(*a, **k)  # type: ignore[method-assign]
    method.loss(batch)
    assert len(forwards) == 2  # teacher (both views), student


def test_a_loss_without_terms_is_refused() -> None:
    off = DePT.Config(pseudo_labels=False, w_cls=0, w_prompt=0, w_div=0, w_class=0)
    with pytest.raises(ValueError, match="switched off"):
        DePT(tiny_model(), off)

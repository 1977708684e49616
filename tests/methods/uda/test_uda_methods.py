"""What is particular to one method."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from uda_support import make, paired_batch

from dept import methods
from dept.core.adapter import pick
from dept.methods.base import Progress
from dept.methods.uda.base import PairedPasses
from dept.methods.uda.can import CAN, IGNORED, spherical_kmeans
from dept.methods.uda.swd import SWD
from support import FixedPasses, moved, scramble, state_of, tiny_model, tiny_resnet


def test_unknown_method() -> None:
    with pytest.raises(ValueError, match="Choose from can, cdan, dann, erm, mcc, swd"):
        methods.get("nonsense", "uda")


def test_erm_does_not_look_at_the_target() -> None:
    one, two = paired_batch(seed=0), paired_batch(seed=0)
    two.views[0].fill_(7.0)
    assert make("erm").step(one) == make("erm").step(two)


@pytest.mark.parametrize("name", ["dann", "cdan"])
def test_the_backbone_climbs_where_the_discriminator_descends(name: str) -> None:
    """With coefficient 1 the gradient on the features is minus that of the plain domain loss."""
    gradients: list[Tensor] = []
    for step in (10**9, 0):  # coefficient 1, then 0
        method = make(name)
        method.at(Progress(step, 2 * 10**9, 0))
        method.paired_loss(paired_batch())["domain"].backward()
        gradient = method.model.get_parameter("backbone.patch_embed.proj.weight").grad
        gradients.append(torch.zeros(()) if gradient is None else gradient.clone())
        assert method.extra["discriminator"].get_parameter("0.weight").grad.abs().sum() > 0  # type: ignore[union-attr]
    assert gradients[0].abs().sum() > 0 and not gradients[1].any()


@pytest.mark.parametrize("changes", [{"entropy": True}, {"randomized_dim": 16}])
def test_cdan_variants_run(changes: dict[str, int]) -> None:
    method = make("cdan", **changes)
    method.at(Progress(100, 200, 0))
    plain, other = make("cdan").paired_loss(paired_batch()), method.paired_loss(paired_batch())
    assert torch.equal(plain["cross_entropy"], other["cross_entropy"])
    assert not torch.equal(plain["domain"], other["domain"])
    method.step(paired_batch())


def test_cdan_gives_the_head_no_gradient_from_the_discriminator() -> None:
    method = make("cdan")
    method.at(Progress(1000, 2000, 0))
    method.paired_loss(paired_batch())["domain"].backward()
    assert method.model.head.weight.grad is None
    assert method.extra["classifier"].weight.grad is None


@pytest.mark.parametrize("name", ["dann", "cdan"])
def test_the_head_is_norm_and_classifier_in_one(name: str) -> None:
    """After every step the ordinary model says what the two modules say with running statistics."""
    method = make(name)
    for step in range(3):
        method.at(Progress(step, 3, 0))
        method.step(paired_batch(seed=step))
    images = torch.randn(5, 3, 32, 32)
    features = method.model.eval().read(images).features
    method.extra.eval()
    expected = method.extra["classifier"](method.extra["norm"](features))
    assert torch.allclose(method.predict(images), expected, atol=1e-5)
    assert not torch.allclose(method.extra["classifier"](features), expected, atol=1e-2)


def test_the_size_of_features_reaches_neither_classifier_nor_discriminator() -> None:
    """Otherwise features grow behind the discriminator's batch norm until the classifier breaks down."""
    small, large = make("dann"), make("dann")
    norm = large.model.backbone.norm
    with torch.no_grad():
        norm.weight.mul_(1000.0)
        norm.bias.mul_(1000.0)
    ours, theirs = (method.paired_loss(paired_batch()) for method in (small, large))
    for term in ("cross_entropy", "domain"):
        assert torch.allclose(ours[term], theirs[term], atol=1e-3)


def test_swd_phases_move_their_own_parameters() -> None:
    method = make("swd")
    assert isinstance(method, SWD)
    head, encoder = (list(pick(method.model, group.names).values()) for group in method.groups)
    classifiers = [*head, *method.extra.parameters()]
    before = state_of(method.model)
    method._update(method._discrepancy(method.halves(paired_batch()).target), encoder)
    changed = moved(before, method.model)
    assert changed and not any(name.startswith("head.") for name in changed)
    before = state_of(method.model)
    method._update(-method._discrepancy(method.halves(paired_batch()).target), classifiers)
    assert moved(before, method.model) == {"head.weight", "head.bias"}


def test_swd_moves_the_generator_without_momentum() -> None:
    method = make("swd")
    method.step(paired_batch())
    assert method.optimizer is not None
    assert [group["momentum"] for group in method.optimizer.param_groups] == [0.9, 0.0, 0.9]


def test_swd_computes_only_the_half_it_needs() -> None:
    """Without batch norm the halves do not see each other: one at a time gives the same step as both together."""
    alone, together = make("swd"), make("swd")
    assert isinstance(alone, SWD) and isinstance(together, SWD)
    together.batch_norm = True
    terms = alone.step(paired_batch())
    assert together.step(paired_batch()) == pytest.approx(terms, abs=1e-6)
    other = state_of(together.model)
    for name, tensor in state_of(alone.model).items():
        torch.testing.assert_close(tensor, other[name], atol=1e-6, rtol=0)
    resnet = make("swd", tiny_resnet())
    assert isinstance(resnet, SWD) and resnet.batch_norm


# ---- CAN ----


def clustered(**changes: float) -> CAN:
    method = make("can", **changes)
    method.begin(PairedPasses(FixedPasses(seed=1), FixedPasses(), torch.arange(10) % 3))
    assert isinstance(method, CAN)
    return method


def test_can_draws_the_same_classes_from_both_domains() -> None:
    method = clustered()
    method.target_labels = torch.tensor([0, 0, 1, 1, 2, 2, 2, IGNORED, IGNORED, IGNORED])
    source, target = method.choose([9, 8, 7, 6], [0, 1, 2, 3], torch.Generator().manual_seed(0))
    assert source[:4] == [9, 8, 7, 6] and len(source) == 4 + 4 and len(target) == 4
    classes = method.source_labels[source[4:]]
    assert torch.equal(classes, method.target_labels[target]) and len(classes.unique()) == 2
    again = method.choose([9, 8, 7, 6], [0, 1, 2, 3], torch.Generator().manual_seed(0))
    assert again == (source, target)


def test_can_repeats_images_of_a_small_class_and_falls_back_to_random_ones() -> None:
    method = clustered()
    method.target_labels = torch.tensor([5 * [IGNORED] + [1] + 4 * [IGNORED]]).squeeze(0)
    _, target = method.choose([0, 1, 2, 3], [4, 5, 6, 7], torch.Generator())
    assert target == [5, 5]
    method.target_labels.fill_(IGNORED)
    assert method.choose([0, 1, 2, 3], [4, 5, 6, 7], torch.Generator()) == ([0, 1, 2, 3], [4, 5, 6, 7])


def test_can_is_settled_when_nothing_moves_and_the_domains_meet() -> None:
    same = PairedPasses(FixedPasses(), FixedPasses(), torch.arange(10) % 3)
    method = make("can", stop_below=1e9)
    method.begin(same)
    assert not method.settled  # there is nothing to compare with yet
    method.refresh(same, 0)
    assert method.settled
    method = clustered()  # here the source is another one: labels and centers rest, but the domains are apart
    method.refresh(PairedPasses(FixedPasses(seed=1), FixedPasses(), torch.arange(10) % 3), 0)
    assert not method.settled


@pytest.mark.parametrize("raw", [False, True])
def test_can_starts_from_sums_of_source_features(raw: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Tensor, bool]] = []

    def noted(features: Tensor, initial: Tensor, *, raw: bool) -> tuple[Tensor, Tensor, Tensor]:
        given.append((initial, raw))
        return spherical_kmeans(features, initial, raw=raw)

    monkeypatch.setattr("dept.methods.uda.can.spherical_kmeans", noted)
    model = tiny_model()
    scramble(model)
    method = make("can", model, raw_centers=raw)
    passes = FixedPasses(seed=1)
    method.begin(PairedPasses(passes, FixedPasses(), torch.arange(10) % 3))
    features = torch.cat([model.read(batch.views[0]).features.detach() for batch in passes()])
    sums = [sum(f if raw else f / f.norm() for f in features[c::3]) for c in range(3)]
    expected = torch.stack([total / total.norm() for total in sums])
    assert given[0][1] is raw and torch.allclose(given[0][0], expected, atol=1e-6)
    assert CAN.preset("released").raw_centers and not CAN.Config().raw_centers  # type: ignore[attr-defined]


def test_can_leaves_out_what_is_far() -> None:
    assert (clustered().target_labels >= 0).all()
    assert (clustered(max_distance=0.0).target_labels == IGNORED).all()


def test_can_keeps_running_statistics_of_the_target() -> None:
    """The source half is normalised with its own batch and leaves no trace in the running statistics."""
    statistics = []
    for shift in (0.0, 50.0):
        method = make("can", tiny_resnet())
        method.begin(PairedPasses(FixedPasses(seed=1), FixedPasses(), torch.arange(10) % 3))
        batch = paired_batch()
        batch.source_views[0].add_(shift)
        method.paired_loss(batch)
        statistics.append(state_of(method.model)["backbone.bn1.running_mean"])
    assert torch.equal(*statistics)


def test_others_put_both_domains_into_the_statistics() -> None:
    statistics = []
    for shift in (0.0, 50.0):
        method = make("mcc", tiny_resnet())
        batch = paired_batch()
        batch.source_views[0].add_(shift)
        method.paired_loss(batch)
        statistics.append(state_of(method.model)["backbone.bn1.running_mean"])
    assert not torch.equal(*statistics)


def test_can_needs_both_domains() -> None:
    with pytest.raises(ValueError, match="source and target images together"):
        make("can", tiny_model()).begin(FixedPasses())

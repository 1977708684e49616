from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dept.data.images import ImageSet
from dept.data.streams import arranged, domain_by_domain, mixed
from dept.errors import UsageError


def image_set(labels: list[int] | None, count: int = 0, name: str = "a") -> ImageSet:
    total = count or len(labels or [])
    return ImageSet(Path(name), tuple(Path(name) / f"{i}.png" for i in range(total)), labels and tuple(labels), ("x",))


LABELS = [c for c in range(5) for _ in range(40)]


@pytest.mark.parametrize("order", ["shuffled", "sorted", "dirichlet", "as-is"])
def test_every_image_comes_exactly_once(order: str) -> None:
    images = image_set(LABELS)
    assert sorted(arranged(images, order, seed=3)) == list(range(len(LABELS)))  # type: ignore[arg-type]


@given(seed=st.integers(0, 50), delta=st.sampled_from([0.01, 0.1, 1.0, 10.0]))
@settings(max_examples=25, deadline=None)
def test_dirichlet_keeps_every_image_whatever_the_draw(seed: int, delta: float) -> None:
    assert sorted(arranged(image_set(LABELS), "dirichlet", seed=seed, delta=delta)) == list(range(len(LABELS)))


def test_orders_are_seeded() -> None:
    images = image_set(LABELS)
    for order in ("shuffled", "sorted", "dirichlet", "imbalanced"):
        assert arranged(images, order, seed=1) == arranged(images, order, seed=1)  # type: ignore[arg-type]
        assert arranged(images, order, seed=1) != arranged(images, order, seed=2)  # type: ignore[arg-type]


def switches(order: tuple[int, ...]) -> int:
    """How often the class changes from one image to the next."""
    labels = np.asarray(LABELS)[list(order)]
    return int((labels[1:] != labels[:-1]).sum())


def test_correlation_grows_as_delta_falls() -> None:
    images = image_set(LABELS)
    assert switches(arranged(images, "sorted")) == 4
    strong = switches(arranged(images, "dirichlet", delta=0.01))
    weak = switches(arranged(images, "dirichlet", delta=100.0))
    assert 4 <= strong < weak <= switches(arranged(images, "shuffled")) * 1.1


def test_long_tail_falls_from_all_to_delta() -> None:
    counts = Counter(LABELS[i] for i in arranged(image_set(LABELS), "imbalanced", delta=0.1))
    assert max(counts.values()) == 40 and min(counts.values()) == 4 and len(counts) == 5


def test_orders_by_label_need_labels() -> None:
    with pytest.raises(UsageError, match="arranged by labels"):
        arranged(image_set(None, 4), "sorted")


def test_domains_follow_each_other_or_mix() -> None:
    domains = [("a", image_set([0, 1, 0], name="a")), ("b", image_set([1, 0], name="b"))]
    continual = domain_by_domain(domains, reset="never")
    assert [s.name for s in continual.segments] == ["a", "b"] and continual.reset == "never"
    (only,) = mixed(domains, seed=0).segments
    assert only.name == "a+b" and only.images.labels == (0, 1, 0, 1, 0)
    assert sorted(only.order) == [0, 1, 2, 3, 4] and len(set(only.images.paths)) == 5

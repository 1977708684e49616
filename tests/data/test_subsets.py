from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dept.data.images import ImageSet
from dept.data.subsets import fraction, sample, split
from dept.errors import DataError, UsageError

VISDA = (3646, 3475, 4690, 10401, 4691, 2075, 5796, 4000, 4549, 2281, 4236, 5548)


@lru_cache
def images_of(counts: tuple[int, ...]) -> ImageSet:
    labels = tuple(label for label, count in enumerate(counts) for _ in range(count))
    paths = tuple(Path(f"r/{number:06}.png") for number in range(len(labels)))
    return ImageSet(Path("r"), paths, labels, tuple(map(str, range(len(counts)))))


@pytest.mark.parametrize(("ratio", "size"), [(0.01, 547), (0.1, 5_534), (0.5, 27_691)])
def test_sizes_of_the_visda_subsets(ratio: float, size: int) -> None:
    subset = fraction(images_of(VISDA), ratio, rule="stratified")
    assert len(subset) == size == len(set(subset.paths))


def test_stratified_takes_each_class_by_the_authors_draw() -> None:
    images = images_of((10, 5, 20))
    subset = fraction(images, 0.5, rule="stratified")
    assert [subset.labels.count(label) for label in range(3)] == [5, 2, 10]
    members = list(range(10, 15))  # class 1
    random.Random(0).shuffle(members)
    assert [p for p, label in zip(subset.paths, subset.labels, strict=True) if label == 1] == [
        images.paths[i] for i in members[:2]
    ]


def test_uniform_needs_no_labels_and_is_seeded() -> None:
    images = images_of((30, 10)).unlabelled()
    one, two = (fraction(images, 0.25, rule="uniform", seed=seed) for seed in (0, 1))
    assert len(one) == len(two) == 10 and one.paths != two.paths
    assert one.paths == fraction(images, 0.25, rule="uniform", seed=0).paths
    assert len(fraction(images, 0.001, rule="uniform")) == 1


def test_the_whole_set_is_left_alone() -> None:
    images = images_of((3, 3)).unlabelled()
    assert fraction(images, 1.0, rule="stratified") is images


def test_refusals() -> None:
    with pytest.raises(UsageError, match=r"`ratio` must be above 0 and at most 1, found 0"):
        fraction(images_of((3,)), 0, rule="stratified")
    with pytest.raises(UsageError, match=r"found 1\.5"):
        fraction(images_of((3,)), 1.5, rule="stratified")
    with pytest.raises(UsageError, match=r"needs labelled target images\. Use `subset=uniform`"):
        fraction(images_of((3,)).unlabelled(), 0.5, rule="stratified")
    with pytest.raises(DataError, match="leaves no image of any class"):
        fraction(images_of((3, 3)), 0.1, rule="stratified")


def test_sample_is_the_fixed_protocol() -> None:
    images = images_of((50, 50))
    chosen = sorted(random.Random(0).sample(range(100), 10))
    assert sample(images, 10).paths == tuple(images.paths[i] for i in chosen)
    assert sample(images, 100) is images and sample(images, 500) is images


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 5))
def test_split_is_a_partition(size: int, share: float, seed: int) -> None:
    images = images_of((size,))
    training, held_out = split(images, share, seed=seed)
    assert len(training) >= 1 and len(held_out) >= 1
    assert sorted(training.paths + held_out.paths) == list(images.paths)
    assert abs(len(held_out) - share * size) <= 1
    again = split(images, share, seed=seed)
    assert again[0].paths == training.paths and len(training.labels) == len(training)


def test_split_of_one_image_is_refused() -> None:
    with pytest.raises(DataError, match="at least two"):
        split(images_of((1,)), 0.1)


@pytest.mark.parametrize("share", [1.5, 1.0, -0.1, float("nan")])
def test_a_held_out_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(UsageError, match="`held_out` must be at least 0 and below 1"):
        split(images_of((10,)), share)

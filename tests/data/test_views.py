from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

from dept.data.decoding import decode
from dept.data.images import find_images
from dept.data.loader import Views, batches, ordered_keys, shuffled_keys
from dept.data.views import Augment, Preprocess, crop_box, make_view, view_rng, weak_view
from dept.data.views import test_view as centre_view
from dept.errors import DataError
from support import picture, write_unlabelled

PRE = Preprocess(size=32, resize=37)
STILL = Augment(flip=0.0, jitter_probability=0.0, grey=0.0, blur=0.0)


def photo(width: int = 60, height: int = 48, seed: int = 0) -> Image.Image:
    """Smooth and coloured, so that resampling differences stay small."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def rng(seed: int = 0) -> np.random.Generator:
    return view_rng(seed, 0, 0, 0)


# ---- test view ----


@pytest.mark.parametrize("rule", ["squash", "shorter", "none"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_test_view_equals_torchvision(rule: str, interpolation: str) -> None:
    pre = Preprocess(size=32, resize=36, rule=rule, interpolation=interpolation)  # type: ignore[arg-type]
    mode = transforms.InterpolationMode(interpolation)
    resize = {"squash": [transforms.Resize((36, 36), mode)], "shorter": [transforms.Resize(36, mode)], "none": []}
    image = photo(60, 48)
    theirs = transforms.Compose([*resize[rule], transforms.CenterCrop(32)])(image)
    assert np.array_equal(np.asarray(centre_view(image, pre)), np.asarray(theirs))


def test_the_authors_resize_is_256_to_224() -> None:
    view = centre_view(photo(300, 200), Preprocess())
    theirs = transforms.Compose([transforms.Resize((256, 256)), transforms.CenterCrop(224)])(photo(300, 200))
    assert np.array_equal(np.asarray(view), np.asarray(theirs))


# ---- random views ----


@pytest.mark.parametrize("letter", ["t", "w", "s"])
@pytest.mark.parametrize(("width", "height"), [(60, 48), (32, 32), (10, 90), (5, 5)])
def test_shapes(letter: str, width: int, height: int) -> None:
    image = photo(width, height)
    view = make_view(image, letter, PRE, Augment(), rng())
    assert view.shape == (32, 32, 3) and view.dtype == np.uint8
    grey = make_view(
        image.convert("L"), letter, Preprocess(size=32, resize=37, mean=(0.5,), std=(0.5,)), Augment(), rng()
    )
    assert grey.shape == (32, 32, 1)


def test_unknown_letters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Unknown view 'x'.*t \(test\)"):
        make_view(photo(), "x", PRE, Augment(), rng())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 1000), st.integers(0, 10**6), st.integers(0, 3), st.sampled_from("ws"))
def test_a_view_is_a_pure_function_of_its_key(seed: int, epoch: int, index: int, view: int, letter: str) -> None:
    np.random.seed(index % 1000)
    torch.manual_seed(epoch)
    key = (seed, epoch, index, view)
    one = make_view(photo(), letter, PRE, Augment(), view_rng(*key))
    two = make_view(photo(), letter, PRE, Augment(), view_rng(*key))
    assert np.array_equal(one, two)


def test_every_part_of_the_key_matters() -> None:
    keys = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    views = [make_view(photo(), "s", PRE, Augment(), view_rng(*key)).tobytes() for key in keys]
    assert len(set(views)) == len(keys)


def test_weak_view_is_a_crop_of_the_resized_image() -> None:
    image = photo()
    resized = np.asarray(image.resize((37, 37), Image.Resampling.BILINEAR))
    crops = {resized[t : t + 32, x : x + 32].tobytes(): (x, t) for t in range(6) for x in range(6)}
    places = [crops[make_view(image, "w", PRE, STILL, rng(n)).tobytes()] for n in range(200)]
    assert {x for x, _ in places} == {t for _, t in places} == set(range(6))


@pytest.mark.parametrize("rule", ["squash", "none"])
def test_an_image_that_is_used_as_it_is_can_be_enlarged_for_its_weak_views(rule: str) -> None:
    image, augment = photo(32, 32), Augment(flip=0.0, weak_resize=37)
    pre = Preprocess(size=32, resize=32, rule=rule)  # type: ignore[arg-type]
    enlarged = np.asarray(image.resize((37, 37), Image.Resampling.BILINEAR))
    crops = {enlarged[t : t + 32, x : x + 32].tobytes(): (x, t) for t in range(6) for x in range(6)}
    views = [make_view(image, "w", pre, augment, view_rng(0, 0, 0, n)) for n in range(40)]
    assert len({crops[view.tobytes()] for view in views}) > 20
    for n, (letter, one) in enumerate((("w", Augment(flip=0.0)), ("t", augment))):  # without it, and other views
        assert np.array_equal(make_view(image, letter, pre, one, view_rng(0, 0, 0, n)), np.asarray(image))


@pytest.mark.parametrize("side", [-1, 2.5, 10**6])
def test_sides_that_make_no_sense_are_refused(side: float) -> None:
    with pytest.raises(ValueError, match="weak_resize must be a whole number from 0"):
        Augment(weak_resize=side)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weak_resize must be at least the model's input size of 32 px"):
        Views(PRE, Augment(weak_resize=31))


def test_flips_come_half_of_the_time() -> None:
    image = photo(32, 32)
    pre = Preprocess(size=32, resize=32)
    mirrored = np.asarray(image)[:, ::-1]
    flips = 0
    for n in range(400):
        view = np.asarray(weak_view(image, pre, Augment(), rng(n)))
        flipped = np.array_equal(view, mirrored)
        assert flipped or np.array_equal(view, np.asarray(image))
        flips += flipped
    assert 160 < flips < 240


def test_strong_view_without_extras_is_a_bicubic_crop() -> None:
    image = photo()
    view = make_view(image, "s", PRE, STILL, rng(3))
    box = crop_box(image.width, image.height, STILL.crop_scale, rng(3))
    assert np.array_equal(view, np.asarray(image.resize((32, 32), Image.Resampling.BICUBIC, box=box)))


def test_strong_view_grey_blur_and_jitter_do_what_they_say() -> None:
    base = make_view(photo(), "s", PRE, STILL, rng(3)).astype(int)
    grey = make_view(photo(), "s", PRE, Augment(0.0, jitter_probability=0, grey=1.0, blur=0), rng(3)).astype(int)
    assert (grey == grey[..., :1]).all() and not (base == base[..., :1]).all()
    expected = base @ np.array([0.299, 0.587, 0.114])
    assert np.abs(grey[..., 0] - expected).max() <= 1
    blurred = make_view(photo(), "s", PRE, Augment(0.0, jitter_probability=0, grey=0, blur=1.0), rng(3)).astype(int)
    assert np.abs(np.diff(blurred, axis=1)).mean() < np.abs(np.diff(base, axis=1)).mean()
    bright = Augment(0.0, jitter=(0.4, 0, 0, 0), jitter_probability=1.0, grey=0, blur=0)
    ratios = []
    for n in range(60):
        plain = make_view(photo(), "s", PRE, STILL, rng(n)).astype(float)
        ratios.append(float(make_view(photo(), "s", PRE, bright, rng(n)).sum() / plain.sum()))
    assert min(ratios) < 0.8 and max(ratios) > 1.1 and min(ratios) > 0.58 and max(ratios) < 1.42


def test_hue_keeps_greys_and_turns_colours() -> None:
    turn = Augment(0.0, jitter=(0, 0, 0, 0.5), jitter_probability=1.0, grey=0, blur=0)
    grey = Image.new("RGB", (40, 40), (90, 90, 90))
    red = Image.new("RGB", (40, 40), (220, 20, 20))
    for n in range(8):
        assert (make_view(grey, "s", PRE, turn, rng(n)) == 90).all()
    means = np.array([make_view(red, "s", PRE, turn, rng(n)).mean(axis=(0, 1)) for n in range(20)])
    assert means.max(axis=0).min() > 150  # every channel dominates some time


def test_jitter_of_a_grey_image_leaves_it_grey() -> None:
    view = make_view(photo().convert("L"), "s", Preprocess(32, 37, mean=(0.5,), std=(0.5,)), Augment(grey=1.0), rng())
    assert view.shape == (32, 32, 1)


def test_crop_boxes_follow_the_recipe() -> None:
    """Areas uniform in (0.2, 1) where they fit, log-aspects within ±ln 4/3, all places reached."""
    areas, aspects, lefts = [], [], []
    generator = np.random.default_rng(0)
    for _ in range(3000):
        left, top, right, bottom = crop_box(200, 200, (0.2, 1.0), generator)
        assert 0 <= left < right <= 200 and 0 <= top < bottom <= 200
        areas.append((right - left) * (bottom - top) / 200**2)
        aspects.append((right - left) / (bottom - top))
        lefts.append(left / max(200 - (right - left), 1))
    assert 0.19 < min(areas) < 0.21 and 0.93 < max(areas) <= 1.0
    assert 0.73 < min(aspects) < 0.77 and 1.3 < max(aspects) < 1.37
    assert abs(float(np.mean(np.log(aspects)))) < 0.02 and abs(float(np.mean(lefts)) - 0.5) < 0.02
    theirs = []
    torch.manual_seed(0)
    for _ in range(3000):
        _, _, h, w = transforms.RandomResizedCrop.get_params(torch.zeros(3, 200, 200), [0.2, 1.0], [3 / 4, 4 / 3])
        theirs.append(h * w / 200**2)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert float(np.quantile(areas, share)) == pytest.approx(float(np.quantile(theirs, share)), abs=0.03)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 10**6))
def test_crop_boxes_are_inside_any_image(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = crop_box(width, height, (0.2, 1.0), np.random.default_rng(seed))
    assert 0 <= left < right <= width and 0 <= top < bottom <= height


def test_crop_of_a_very_long_image_is_the_largest_centred_one() -> None:
    assert crop_box(1000, 9, (0.9, 1.0), np.random.default_rng(0)) == (494, 0, 506, 9)  # 9 · 4/3 = 12 wide
    left, top, right, bottom = crop_box(9, 1000, (0.9, 1.0), np.random.default_rng(0))
    assert (left, right, bottom - top) == (0, 9, 12)


# ---- batches ----


def test_normalisation_equals_torchvision(tmp_path: Path) -> None:
    root = write_unlabelled(tmp_path, 3)
    pre = Preprocess(size=32, resize=36, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    images = find_images(root)
    ((index, (views,)),) = batches(images, "t", Views(pre), ordered_keys(3, 8))
    theirs = transforms.Compose([
        transforms.Resize((36, 36)), transforms.CenterCrop(32), transforms.ToTensor(),
        transforms.Normalize(pre.mean, pre.std),
    ])  # fmt: skip
    expected = torch.stack([theirs(decode(path)) for path in images.paths])
    assert index.tolist() == [0, 1, 2] and views.dtype == torch.float32
    assert torch.allclose(views, expected, atol=1e-6)


def test_one_tensor_per_letter(tmp_path: Path) -> None:
    images = find_images(write_unlabelled(tmp_path, 5))
    made = list(batches(images, "wsst", Views(PRE, seed=1), ordered_keys(5, 2)))
    assert [len(index) for index, _ in made] == [2, 2, 1]
    first = made[0][1]
    assert len(first) == 4 and all(view.shape == (2, 3, 32, 32) for view in first)
    assert not torch.equal(first[1], first[2])  # two strong views are independent


def test_views_do_not_depend_on_batching_or_workers(tmp_path: Path) -> None:
    images = find_images(write_unlabelled(tmp_path, 6))
    views = Views(PRE, seed=4)
    keys = [[(3, i) for i in range(6)]]
    ((_, whole),) = batches(images, "ws", views, keys)
    split = list(batches(images, "ws", views, [[(3, 0)], [(3, 1), (3, 2)], [(3, 3), (3, 4), (3, 5)]], workers=2))
    for letter in range(2):
        assert torch.equal(torch.cat([made[letter] for _, made in split]), whole[letter])
    ((_, other),) = batches(images, "ws", views, [[(4, i) for i in range(6)]])
    assert not torch.equal(other[0], whole[0])


def test_grey_models_get_one_channel(tmp_path: Path) -> None:
    images = find_images(write_unlabelled(tmp_path, 2))
    ((_, (views,)),) = batches(images, "s", Views(Preprocess(32, 37, mean=(0.5,), std=(0.25,))), ordered_keys(2, 2))
    assert views.shape == (2, 1, 32, 32)


def test_shuffled_keys_are_a_seeded_permutation_per_epoch() -> None:
    def keys(seed: int, steps: range) -> list[list[tuple[int, int]]]:
        return list(shuffled_keys(10, 4, steps, seed))

    whole = keys(1, range(9))
    assert [len(part) for part in whole] == [4, 4, 2] * 3
    for epoch in range(3):
        flat = [key for part in whole[3 * epoch : 3 * epoch + 3] for key in part]
        assert {e for e, _ in flat} == {epoch} and sorted(i for _, i in flat) == list(range(10))
    assert keys(1, range(4, 9)) == whole[4:] and keys(2, range(9)) != whole
    first, second = ([i for part in whole[at : at + 3] for _, i in part] for at in (0, 3))
    assert first != second


def test_pictures_differ_by_class() -> None:
    """The tiny data of these tests can be learned at all."""
    generator = np.random.default_rng(0)
    for colour in range(3):
        pixels = np.asarray(picture(colour, generator)).astype(float)
        assert int(pixels.mean(axis=(0, 1)).argmax()) == colour
    assert math.isfinite(pixels.mean())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_vanishes_is_one_sentence(tmp_path: Path, workers: int) -> None:
    """Not the traceback of a worker, which is how torch hands an error on."""
    images = find_images(write_unlabelled(tmp_path, 3))
    images.paths[1].unlink()
    keys = [[(0, 0)], [(0, 1), (0, 2)]]
    with pytest.raises(DataError) as error:
        list(batches(images, "w", Views(PRE), keys, workers=workers))
    said = str(error.value)
    assert said.startswith(f"{images.paths[1]} cannot be read (FileNotFoundError: ") and said.endswith("Put it back.")
    assert len(said.splitlines()) == 1

"""Views made on the device are the reference views: same parameters, same pixels up to the rounding to bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from dept.data import device_views as dv
from dept.data.images import find_images
from dept.data.loader import Views, batches, ordered_keys
from dept.data.views import (
    Augment,
    Preprocess,
    StrongParams,
    crop_box,
    draw_strong,
    draw_weak,
    make_view,
    resized_size,
    strong_view,
    view_rng,
)

PRE = Preprocess(size=64, resize=73)
SIZES = ((64, 64), (100, 75), (60, 90), (40, 30), (143, 143))  # all at most 144 = 64 / √0.2: no canvas is shrunk
PLAIN = Augment(jitter_probability=0.0, grey=0.0, blur=0.0)
BYTE = 1 / 255
ONE_STEP = {
    "brightness": Augment(jitter=(0.4, 0, 0, 0), jitter_probability=1, grey=0, blur=0),
    "contrast": Augment(jitter=(0, 0.4, 0, 0), jitter_probability=1, grey=0, blur=0),
    "saturation": Augment(jitter=(0, 0, 0.4, 0), jitter_probability=1, grey=0, blur=0),
    "hue": Augment(jitter=(0, 0, 0, 0.1), jitter_probability=1, grey=0, blur=0),
    "grey": Augment(jitter_probability=0, grey=1, blur=0),
    "blur": Augment(jitter_probability=0, grey=0, blur=1),
}


def picture(width: int, height: int, seed: int, mode: str = "RGB") -> Image.Image:
    """Noise with the spectrum of natural images (amplitude 1/f) and correlated channels."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None] * height, np.fft.fftfreq(width)[None] * width) + 1
    noise = np.fft.fft2(rng.normal(size=(height, width, 3)), axes=(0, 1)) / frequency[:, :, None]
    smooth = np.fft.ifft2(noise, axes=(0, 1)).real @ (np.ones((3, 3)) + np.eye(3))
    levels = 128 + 55 * (smooth - smooth.mean()) / smooth.std()
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8)).convert(mode)


def pictures(count: int, sizes: tuple[tuple[int, int], ...] = SIZES, mode: str = "RGB") -> list[Image.Image]:
    return [picture(*sizes[n % len(sizes)], seed=n, mode=mode) for n in range(count)]


def canvas(image: Image.Image, letters: str, pre: Preprocess, augment: Augment, index: int) -> dv.Canvas:
    rngs = [view_rng(0, 0, index, number) for number in range(len(letters))]
    return dv.make_canvas(image, letters, pre, augment, rngs, index=index)


def on_device(images: list[Image.Image], letter: str, pre: Preprocess, augment: Augment) -> Tensor:
    rows = [canvas(image, letter, pre, augment, index) for index, image in enumerate(images)]
    return dv.render(dv.collate(rows), pre)[0]


def reference(images: list[Image.Image], letter: str, pre: Preprocess, augment: Augment) -> Tensor:
    made = [make_view(image, letter, pre, augment, view_rng(0, 0, index, 0)) for index, image in enumerate(images)]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).float() / 255


def differences(images: list[Image.Image], letter: str, pre: Preprocess, augment: Augment) -> Tensor:
    return on_device(images, letter, pre, augment) - reference(images, letter, pre, augment)


# -- the parameters: drawn in the order in which the released code interleaves drawing and applying


def interleaved_strong_view(image: Image.Image, pre: Preprocess, augment: Augment, rng: Any) -> Image.Image:
    """The strong view as it was before drawing and applying were separated."""
    box = crop_box(image.width, image.height, augment.crop_scale, rng)
    view = image.resize((pre.size, pre.size), Image.Resampling.BICUBIC, box=box)
    if rng.random() < augment.flip:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if rng.random() < augment.jitter_probability:
        for step in rng.permutation(4):
            draw = rng.uniform(-augment.jitter[step], augment.jitter[step])
            if not augment.jitter[step] or (step >= 2 and view.mode == "L"):
                continue
            if step == 3:
                hue, *others = view.convert("HSV").split()
                turned = (np.asarray(hue).astype(np.int16) + round(draw * 255)) % 256
                view = Image.merge("HSV", (Image.fromarray(turned.astype(np.uint8)), *others)).convert("RGB")
            else:
                kind = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[step]
                view = kind(view).enhance(1 + draw)
    if rng.random() < augment.grey and view.mode == "RGB":
        view = view.convert("L").convert("RGB")
    if rng.random() < augment.blur:
        view = view.filter(ImageFilter.GaussianBlur(rng.uniform(*augment.blur_radius)))
    return view


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("augment", [Augment(), Augment(jitter=(0.4, 0.0, 0.8, 0.0), grey=0.5, blur_radius=(0, 1))])
def test_drawing_first_changes_no_pixel(mode: str, augment: Augment) -> None:
    for index, image in enumerate(pictures(20, mode=mode)):
        one, two = view_rng(1, 2, index, 0), view_rng(1, 2, index, 0)
        new, old = strong_view(image, PRE, augment, one), interleaved_strong_view(image, PRE, augment, two)
        assert np.array_equal(np.asarray(new), np.asarray(old))
        assert one.bit_generator.state == two.bit_generator.state


def test_drawn_parameters_are_in_range_and_repeatable() -> None:
    augment = Augment()
    for index in range(50):
        drawn = draw_strong(100, 75, augment, view_rng(0, 0, index, 1))
        assert drawn == draw_strong(100, 75, augment, view_rng(0, 0, index, 1))
        assert sorted(step for step, _ in drawn.jitter) in ([], [0, 1, 2, 3])
        assert all(abs(amount) <= augment.jitter[step] for step, amount in drawn.jitter)
        assert drawn.blur == 0 or 0.1 <= drawn.blur <= 2
        weak = draw_weak(73, 70, 64, augment, view_rng(0, 0, index, 0))
        assert 0 <= weak.left <= 9 and 0 <= weak.top <= 6


# -- the operations, each against an independent implementation


@pytest.mark.parametrize("filter_name", ["BILINEAR", "BICUBIC"])
@pytest.mark.parametrize("box", [(0, 0, 90, 70), (10, 5, 40, 60), (0.0, 20.5, 89.5, 31.0), (50, 0, 90, 12)])
def test_resampling_is_pillows(filter_name: str, box: tuple[float, float, float, float]) -> None:
    """Against Pillow on floats (mode F), which rounds nothing: enlarging, shrinking, at edges, flipped."""
    size = 32
    image = picture(90, 70, seed=1).convert("F")
    expected = np.asarray(image.resize((size, size), Image.Resampling[filter_name], box=box)) / 255
    kernel = dv.cubic if filter_name == "BICUBIC" else dv.triangle
    across = torch.tensor([[box[0], (box[2] - box[0]) / size, 0, size, 90, 1]])
    down = torch.tensor([[box[1], (box[3] - box[1]) / size, 0, size, 70, 0]])
    padded = torch.full((1, 1, 80, 100), 9.0)  # what is beyond the image must not matter
    padded[0, 0, :70, :90] = torch.from_numpy(np.array(image)) / 255
    rows, columns = dv.resampling(down, size, 80, kernel), dv.resampling(across, size, 100, kernel)
    made = (rows @ padded[0, 0] @ columns.transpose(1, 2))[0].flip(1)
    np.testing.assert_allclose(made.numpy(), expected, atol=2e-5)


@pytest.mark.parametrize(
    "operation, other, amount, tolerance",
    [
        (dv.brightness, tv.adjust_brightness, 1, 1e-6),
        (dv.contrast, tv.adjust_contrast, 1, 1e-3),  # torchvision's grey has 0.2989 for 0.299
        (dv.saturation, tv.adjust_saturation, 1, 1e-3),
        (dv.hue, tv.adjust_hue, 0, 1e-5),
    ],
)
def test_colour_operations_are_torchvisions(operation: Any, other: Any, amount: int, tolerance: float) -> None:
    views = torch.rand(6, 3, 9, 11, generator=torch.Generator().manual_seed(0))
    views[0, :, 0] = 0.5  # greys have no hue
    amounts = torch.tensor([-0.4, -0.1, 0.0, 0.05, 0.3, 0.5])
    made = operation(views, amounts.view(-1, 1, 1, 1))
    expected = torch.stack([other(v, amount + float(a)) for v, a in zip(views, amounts, strict=True)])
    torch.testing.assert_close(made, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("radius", [0.1, 0.5, 1.0, 1.37, 2.0, 5.0])
def test_blur_is_pillows(radius: float) -> None:
    image = picture(48, 48, seed=2)
    pixels = tv.to_dtype(tv.pil_to_tensor(image), torch.float32, scale=True)[None]
    expected = tv.pil_to_tensor(image.filter(ImageFilter.GaussianBlur(radius))).float()[0] / 255
    made = dv.blur(pixels, torch.tensor([radius]).view(1, 1, 1, 1))
    assert (made[0, 0] - expected).abs().max() < 4 * BYTE  # Pillow rounds after each of six passes
    assert (made[0, 0] - expected).abs().mean() < 0.7 * BYTE


def test_box_has_the_variance_of_the_gaussian() -> None:
    for radius in (0.3, 1.0, 2.0, 4.5):
        kernel = torch.matrix_power(dv.box_blurs(torch.tensor([dv.box_radius(radius)]), 81)[0].double(), 3)[40]
        offsets = torch.arange(81) - 40
        assert float(kernel.sum()) == pytest.approx(1, abs=1e-6)
        assert float((kernel * offsets**2).sum()) == pytest.approx(radius**2, rel=1e-4)


# -- whole views against the reference


def rounding_only(error: Tensor) -> bool:
    """Pillow rounds once per axis. Where bicubic overshoots 0 or 1, it also matters which axis is done first;
    we always begin with x, new Pillow with the cheaper one."""
    return bool(error.mean() < 0.4 * BYTE and (error > 1.7 * BYTE).float().mean() < 0.002 and error.max() < 0.1)


@pytest.mark.parametrize("rule", ["squash", "shorter", "none"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("letter", ["t", "w"])
def test_test_and_weak_views_are_exact_up_to_rounding(rule: Any, interpolation: Any, letter: str) -> None:
    """Also where the image is smaller than the crop (rule none), which leaves black borders."""
    pre = Preprocess(size=64, resize=73, rule=rule, interpolation=interpolation)
    error = differences(pictures(10), letter, pre, Augment()).abs()
    assert rounding_only(error)
    assert error.max() < 1e-6 or rule != "none"


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_strong_crops_are_exact_up_to_rounding(mode: str) -> None:
    pre = PRE if mode == "RGB" else Preprocess(size=64, resize=73, mean=(0.5,), std=(0.5,))
    assert rounding_only(differences(pictures(20, mode=mode), "s", pre, PLAIN).abs())


@pytest.mark.parametrize("name", list(ONE_STEP))
def test_each_strong_operation_is_close(name: str) -> None:
    error = differences(pictures(20), "s", PRE, ONE_STEP[name])
    assert error.abs().mean() < 0.003
    assert error.abs().mean(dim=(1, 2, 3)).max() < 0.006


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("rule", ["squash", "shorter", "none"])
def test_strong_views_are_close(mode: str, rule: Any) -> None:
    stats = (0.5,) * len(mode) if mode == "RGB" else (0.5,)
    pre = Preprocess(size=64, resize=73, rule=rule, mean=stats, std=stats)
    error = differences(pictures(30, mode=mode), "s", pre, Augment()).abs()
    assert error.mean() < 0.006
    assert error.mean(dim=(1, 2, 3)).max() < 0.015


def test_statistics_over_many_views_agree() -> None:
    """Pillow cuts off fractions in brightness, contrast and saturation: its views are darker by up to a byte."""
    images = pictures(200)
    ours, theirs = on_device(images, "s", PRE, Augment()), reference(images, "s", PRE, Augment())
    means, stds = (
        ours.mean(dim=(0, 2, 3)) - theirs.mean(dim=(0, 2, 3)),
        ours.std(dim=(0, 2, 3)) - theirs.std(dim=(0, 2, 3)),
    )
    assert means.min() >= 0 and means.max() < 1.5 * BYTE
    assert stds.abs().max() < 0.5 * BYTE
    edges = [(v[..., 1:] - v[..., :-1]).std() for v in (ours, theirs)]
    assert float(edges[0] / edges[1]) == pytest.approx(1, abs=0.01)


def test_large_images_travel_shrunk_and_give_close_views() -> None:
    images = pictures(12, sizes=((400, 300), (640, 480), (90, 300)))
    rows = [canvas(image, "s", PRE, Augment(), index) for index, image in enumerate(images)]
    assert [row.pixels.shape[:2] for row in rows[:3]] == [(144, 166), (144, 166), (262, 90)]
    assert differences(images, "t", PRE, Augment()).abs().mean() < 0.005
    error = differences(images, "s", PRE, PLAIN).abs()
    assert error.mean() < 0.006 and error.mean(dim=(1, 2, 3)).max() < 0.015
    edges = [
        (v[..., 1:] - v[..., :-1]).std()
        for v in (on_device(images, "s", PRE, PLAIN), reference(images, "s", PRE, PLAIN))
    ]
    assert float(edges[0] / edges[1]) == pytest.approx(1, abs=0.05)


def test_canvas_keeps_what_the_views_show() -> None:
    augment = Augment()
    assert dv.canvas_size(224, 200, Preprocess(), augment) == (224, 200)
    assert dv.canvas_size(4000, 3000, Preprocess(), augment) == (579, 501)
    assert dv.canvas_size(9000, 300, Preprocess(), augment) == (1002, 300)
    panorama = Preprocess(rule="shorter")
    assert dv.canvas_size(4000, 500, panorama, augment) == (resized_size(4000, 500, panorama)[0], 500)
    assert dv.canvas_size(4000, 3000, Preprocess(rule="none"), augment) == (4000, 3000)
    assert dv.canvas_size(4000, 3000, Preprocess(), Augment(crop_scale=(0.0, 1.0))) == (1035, 896)


# -- a view depends on nothing but (seed, epoch, index, view)


def test_batch_split_does_not_matter() -> None:
    rows = [canvas(image, "tws", PRE, Augment(), index) for index, image in enumerate(pictures(12))]
    together = dv.render(dv.collate(rows), PRE)
    again = dv.render(dv.collate(rows), PRE)
    alone = [dv.render(dv.collate([row]), PRE) for row in rows]
    for number, views in enumerate(together):
        assert torch.equal(views, again[number])
        torch.testing.assert_close(views, torch.cat([one[number] for one in alone]), atol=1e-6, rtol=0)


def test_colour_order_is_each_samples_own() -> None:
    """Saturation and brightness do not commute when channels saturate; each row follows its own order."""
    box, image = (0, 0, 64, 64), picture(64, 64, seed=3)
    orders = (((0, 0.4), (2, -0.4)), ((2, -0.4), (0, 0.4)), (), ((1, 0.4), (3, 0.1), (0, 0.2)))
    drawn = [StrongParams(box, False, order, False, 0.0) for order in orders]
    start = tv.to_dtype(tv.pil_to_tensor(image), torch.float32, scale=True)[None]
    made = dv.apply_strong(start.repeat(4, 1, 1, 1), drawn)
    operations = (dv.brightness, dv.contrast, dv.saturation, dv.hue)
    for row, order in zip(made, orders, strict=True):
        expected = start
        for step, amount in order:
            expected = operations[step](expected, torch.full((1, 1, 1, 1), amount))
        torch.testing.assert_close(row, expected[0], atol=1e-6, rtol=0)
    assert not torch.allclose(made[0], made[1])


def test_unknown_view_is_refused() -> None:
    with pytest.raises(ValueError, match="Unknown view 'x'"):
        canvas(picture(64, 64, seed=0), "wx", PRE, Augment(), 0)


# -- the loader


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_gives_the_same_views_in_device_mode(tmp_path: Path, workers: int) -> None:
    for number, image in enumerate(pictures(7)):
        image.save(tmp_path / f"{number}.png")
    images, views = find_images(tmp_path), Views(Preprocess(size=64, resize=73, mean=(0.4, 0.5, 0.6)), seed=3)
    keys = ordered_keys(len(images), 3)
    plain = list(batches(images, "wss", views, keys))
    made = list(batches(images, "wss", views, keys, workers=workers, device_views=True))
    assert [index.tolist() for index, _ in made] == [[0, 1, 2], [3, 4, 5], [6]]
    for (_, ours), (_, theirs) in zip(made, plain, strict=True):
        assert len(ours) == 3
        for number, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            assert one.shape == two.shape and one.dtype == two.dtype
            assert (one - two).abs().mean() < (0.004 if number == 0 else 0.03)  # in units of the std, 0.5

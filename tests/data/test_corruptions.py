import colorsys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dept.data.corruptions import CORRUPTIONS, EXTRA, blur, corrupt, digital, filters, lens, noise, weather
from dept.data.corruptions.filters import Pixels, fft, ndimage
from dept.data.corruptions.textures import ICES, ice, plasma

HSV = tuple[float, float, float]

ALL = CORRUPTIONS + EXTRA
DETERMINISTIC = {
    "defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression",
    "gaussian_blur", "saturate",
}  # fmt: skip

# The published constants do not damage the image more at every step for these, so PSNR is not monotone:
#   glass_blur         severity 2 sweeps once where 1 sweeps twice, 4 sweeps twice where 3 sweeps three times;
#   frost              the ice keeps its weight from 3 to 4 while the image gets darker, away from white-out;
#   fog                from 3 to 4 only the fractal gets rougher, the thickness stays;
#   elastic_transform  the affine part shrinks tenfold from severity 2 to 3;
#   saturate           1 and 2 take colour away, 3 to 5 add it.
NOT_MONOTONE = {"glass_blur", "frost", "fog", "elastic_transform", "saturate"}


def natural_image(height: int = 160, width: int = 160, seed: int = 0) -> Pixels:
    """Colour noise with the 1/f spectrum of photographs, correlated over channels, (H, W, 3) bytes."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = 1
    spectrum = np.fft.rfft2(rng.standard_normal((3, height, width))) / frequency**1.2
    planes = np.fft.irfft2(spectrum, s=(height, width))
    planes -= planes.mean(axis=(1, 2), keepdims=True)
    planes /= planes.std(axis=(1, 2), keepdims=True)
    rgb = np.stack([planes[0] + 0.3 * planes[1], planes[0], planes[0] + 0.3 * planes[2]], axis=2)
    return np.asarray(np.clip(120 + 50 * rgb, 0, 255), dtype=np.uint8)


def psnr(image: Pixels, clean: Pixels) -> float:
    return float(10 * np.log10(255**2 / np.mean((image.astype(float) - clean) ** 2)))


def mean_psnr(name: str, severity: int, clean: Pixels) -> float:
    return float(np.mean([psnr(corrupt(clean, name, severity, seed=seed), clean) for seed in range(4)]))


# ---- the contract, for every corruption ----


def test_names_are_the_official_ones_in_order() -> None:
    assert CORRUPTIONS == (
        "gaussian_noise", "shot_noise", "impulse_noise",
        "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
        "snow", "frost", "fog", "brightness",
        "contrast", "elastic_transform", "pixelate", "jpeg_compression",
    )  # fmt: skip
    assert EXTRA == ("speckle_noise", "gaussian_blur", "spatter", "saturate")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [(64, 64, 3), (96, 130, 3), (131, 70, 3), (32, 32, 3), (48, 64)])
def test_any_size_and_grey(name: str, shape: tuple[int, ...]) -> None:
    image = natural_image(*shape[:2])
    image = image if len(shape) == 3 else image[..., 0]
    before = image.copy()
    for severity in (1, 3, 5):
        result = corrupt(image, name, severity)
        assert result.dtype == np.uint8
        assert result.shape == (*shape[:2], 3)
        assert result.flags.c_contiguous
    assert np.array_equal(image, before)


@pytest.mark.parametrize("name", ALL)
def test_same_arguments_same_bits(name: str) -> None:
    image = natural_image(64, 80)
    for severity in (2, 5):
        first = corrupt(image, name, severity, seed=7)
        assert np.array_equal(first, corrupt(image, name, severity, seed=7))
        other = corrupt(image, name, severity, seed=8)
        assert np.array_equal(first, other) == (name in DETERMINISTIC)


@pytest.mark.parametrize("name", ALL)
def test_severity_zero_is_a_copy(name: str) -> None:
    image = natural_image(40, 50)
    result = corrupt(image, name, 0)
    assert np.array_equal(result, image)
    assert not np.shares_memory(result, image)
    assert np.array_equal(corrupt(image[..., 0], name, 0), np.stack([image[..., 0]] * 3, axis=2))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("value", [0, 255])
def test_flat_images_raise_no_warning(name: str, value: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for severity in range(1, 6):
            corrupt(np.full((40, 48, 3), value, np.uint8), name, severity)


def test_a_view_that_is_not_contiguous_gives_the_same() -> None:
    image = natural_image(64, 64)
    for name in ALL:
        assert np.array_equal(corrupt(image[:, ::-1], name, 3), corrupt(image[:, ::-1].copy(), name, 3))


@pytest.mark.parametrize("name", [name for name in ALL if name not in NOT_MONOTONE])
def test_psnr_falls_with_severity(name: str) -> None:
    image = natural_image()
    values = [mean_psnr(name, severity, image) for severity in range(1, 6)]
    assert all(np.diff(values) < 0), values


def test_published_constants_that_are_not_monotone() -> None:
    image = natural_image()
    assert mean_psnr("glass_blur", 2, image) > mean_psnr("glass_blur", 1, image)
    assert mean_psnr("elastic_transform", 3, image) > mean_psnr("elastic_transform", 2, image) + 3
    assert mean_psnr("fog", 1, image) > mean_psnr("fog", 5, image)


# ---- errors ----


@pytest.mark.parametrize(
    ("image", "name", "severity", "seed", "sentence"),
    [
        (np.zeros((40, 40, 3), np.uint8), "rain", 1, 0, "no corruption called 'rain'. Choose one of: gaussian_noise"),
        (np.zeros((40, 40, 3), np.uint8), "fog", 6, 0, "The severity is 6, but it must be a whole number from 1"),
        (np.zeros((40, 40, 3), np.uint8), "fog", -1, 0, "The severity is -1"),
        (np.zeros((40, 40, 3), np.uint8), "fog", 2.5, 0, "The severity is 2.5"),
        (np.zeros((40, 40, 3), np.uint8), "fog", 1, -3, "The seed is -3, but"),
        (np.zeros((40, 40, 3), np.float32), "fog", 1, 0, "an array of float32, but .* Convert it first"),
        ([[0]], "fog", 1, 0, "The image is a list"),
        (np.zeros((40, 40, 4), np.uint8), "fog", 1, 0, r"shape \(40, 40, 4\), but .* drop an alpha channel"),
        (np.zeros((31, 40, 3), np.uint8), "fog", 1, 0, "31 x 40 pixels, but each side must have at least 32"),
    ],
)  # fmt: skip
def test_errors_say_what_was_found_and_what_to_do(
    image: Any, name: str, severity: int, seed: int, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as raised:
        corrupt(image, name, severity, seed=seed)
    assert str(raised.value).endswith(".")


# ---- published constants ----


def test_published_constants() -> None:
    assert noise.GAUSSIAN_NOISE == (0.08, 0.12, 0.18, 0.26, 0.38)
    assert noise.SHOT_NOISE == (60, 25, 12, 5, 3)
    assert noise.IMPULSE_NOISE == (0.03, 0.06, 0.09, 0.17, 0.27)
    assert blur.DEFOCUS_BLUR == ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))
    assert blur.GLASS_BLUR == ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))
    assert blur.MOTION_BLUR == ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
    assert weather.FROST == ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))
    assert weather.FOG == ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))
    assert weather.SNOW[4] == (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55)
    assert digital.JPEG_COMPRESSION == (25, 18, 15, 10, 7)
    assert digital.PIXELATE == (0.6, 0.5, 0.4, 0.3, 0.25)
    assert digital.elastic_unit(224, 224) == pytest.approx(244)
    assert [c[0] * 244 for c in digital.ELASTIC_TRANSFORM] == pytest.approx([488, 488, 12.2, 17.08, 29.28])


def test_zoom_layers_are_counted_as_published() -> None:
    # np.arange(1, 1.11, 0.01) has 12 entries, the last 1.11, by rounding; the published data have them all.
    assert [len(np.arange(1, *constants)) for constants in blur.ZOOM_BLUR] == [12, 16, 11, 13, 11]


# ---- noise ----


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_gaussian_noise_has_the_published_deviation(severity: int) -> None:
    grey = np.full((200, 200, 3), 128, np.uint8)
    noisy = corrupt(grey, "gaussian_noise", severity).astype(float)
    assert noisy.std() / 255 == pytest.approx(noise.GAUSSIAN_NOISE[severity - 1], rel=0.02)
    assert noisy.mean() == pytest.approx(127.5, abs=0.5)  # truncation to bytes takes half a level


def test_shot_noise_is_poisson() -> None:
    noisy = corrupt(np.full((200, 200, 3), 51, np.uint8), "shot_noise", 1) / 255  # a fifth of white
    assert noisy.mean() == pytest.approx(0.2, abs=0.003)
    assert noisy.var() == pytest.approx(0.2 / 60, rel=0.03)


def test_impulse_noise_replaces_the_published_share_of_values() -> None:
    noisy = corrupt(np.full((200, 200, 3), 100, np.uint8), "impulse_noise", 5)
    assert (noisy == 0).mean() == pytest.approx(0.135, abs=0.005)
    assert (noisy == 255).mean() == pytest.approx(0.135, abs=0.005)
    assert (noisy == 100).mean() == pytest.approx(0.73, abs=0.005)


def test_speckle_noise_grows_with_the_value() -> None:
    image = np.full((200, 200, 3), 50, np.uint8)
    assert (corrupt(image, "speckle_noise", 1) / 50).std() == pytest.approx(0.15, rel=0.03)


# ---- blur ----


@pytest.mark.parametrize("severity", [1, 4, 5])
def test_defocus_equals_the_direct_convolution(severity: int) -> None:
    image = natural_image(48, 60)
    kernel = blur.disk_kernel(*blur.DEFOCUS_BLUR[severity - 1])
    direct = np.stack([ndimage.convolve(image[..., c] / 255, kernel, mode="mirror") for c in range(3)], axis=2)
    # Truncation may fall on either side of a whole number.
    assert np.abs(corrupt(image, "defocus_blur", severity) - direct * 255 + 0.5).max() < 0.51


def test_disk_kernel() -> None:
    kernel = blur.disk_kernel(3, 0.1)
    assert kernel.shape == (17, 17)
    assert np.count_nonzero(kernel > 1e-6) == 29  # lattice points in a circle of radius 3
    assert blur.disk_kernel(10, 0.5).shape == (21, 21)
    # The published softening mirrors the kernel at its border, which adds about 1 % of light.
    assert blur.disk_kernel(10, 0.5).sum() == pytest.approx(1.0108, abs=1e-4)


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_sweep_equals_the_published_loop(reach: int) -> None:
    height, width = 34, 41
    moves = np.random.default_rng(reach).integers(-reach, reach, size=(2, height - 2 * reach, width - 2 * reach))
    image = np.arange(height * width * 3).reshape(height, width, 3)
    expected = image.copy()
    for row in range(height - reach, reach, -1):
        for column in range(width - reach, reach, -1):
            down, right = moves[:, row - reach - 1, column - reach - 1]
            here, there = expected[row, column], expected[row + down, column + right]
            # Both names are views: after the first assignment the second changes nothing.
            expected[row, column], expected[row + down, column + right] = there, here
    sources = blur.sweep_sources(height, width, reach, moves)
    assert np.array_equal(image.reshape(-1, 3)[sources].reshape(image.shape), expected)


@pytest.mark.parametrize("angle", [-120, -45, 0, 30])
def test_line_blur_equals_the_definition(angle: float) -> None:
    rng = np.random.default_rng(0)
    image = rng.random((36, 44)).astype(np.float32)
    weights = np.exp(-(np.arange(13) ** 2) / (2 * 4.0**2))
    expected = np.zeros(image.shape)
    for row, column in np.ndindex(image.shape):
        for tap, weight in enumerate(weights / weights.sum()):
            y = row + int(np.ceil(tap * np.sin(np.deg2rad(angle)) - 0.5))
            x = column + int(np.ceil(tap * np.cos(np.deg2rad(angle)) - 0.5))
            expected[row, column] += weight * image[min(max(y, 0), 35), min(max(x, 0), 43)]
    assert np.allclose(filters.line_blur(image, radius=6, sigma=4, angle=angle), expected, atol=1e-5)


@pytest.mark.parametrize("factor", [1.0, 1.03, 1.11, 1.3, 2.5, 4.5])
@pytest.mark.parametrize("shape", [(64, 64, 3), (50, 77, 3)])
def test_zoom_equals_scipys_zoom_of_the_central_crop(factor: float, shape: tuple[int, int, int]) -> None:
    image = np.random.default_rng(0).random(shape).astype(np.float32)
    crop = [int(np.ceil(side / factor)) for side in shape[:2]]
    top, left = [(side - small) // 2 for side, small in zip(shape, crop, strict=False)]
    big = ndimage.zoom(image[top : top + crop[0], left : left + crop[1]], (factor, factor, 1), order=1)
    top, left = [(large - side) // 2 for large, side in zip(big.shape, shape[:2], strict=False)]
    expected = big[top : top + shape[0], left : left + shape[1]]
    assert np.allclose(filters.zoom_center(image, factor), expected, atol=1e-5)


@pytest.mark.parametrize("sigma", [0.7, 2.44, 19.5, 170.8])
def test_smooth_field_equals_the_direct_blur(sigma: float) -> None:
    field = np.random.default_rng(0).uniform(-1, 1, (40, 56)).astype(np.float32)
    direct = ndimage.gaussian_filter(field.astype(float), sigma, mode="reflect", truncate=3)
    assert np.allclose(filters.smooth_field(field, sigma), direct, atol=1e-6)


# ---- weather ----


def per_pixel_hsv(image: Pixels, change: Callable[[float, float, float], HSV]) -> NDArray[np.float64]:
    """Apply change(h, s, v) to each pixel with the standard library's HSV, (H, W, 3) in 0 to 255."""
    result = np.zeros(image.shape)
    for row, column in np.ndindex(image.shape[:2]):
        result[row, column] = colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*(image[row, column] / 255))))
    return result * 255


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_brightness_equals_hsv_per_pixel(severity: int) -> None:
    image = natural_image(32, 40)
    image[:2] = 0  # black has no hue
    slow = per_pixel_hsv(image, lambda h, s, v: (h, s, min(v + severity / 10, 1)))
    assert np.abs(corrupt(image, "brightness", severity) - slow + 0.5).max() < 0.51


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_saturate_equals_hsv_per_pixel(severity: int) -> None:
    image = natural_image(32, 40)
    image[:2] = 77  # grey has no hue
    factor, offset = ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))[severity - 1]
    slow = per_pixel_hsv(image, lambda h, s, v: (h, min(s * factor + offset, 1), v))
    assert np.abs(corrupt(image, "saturate", severity) - slow + 0.5).max() < 0.51


def test_plasma_fills_the_unit_interval_and_roughens_as_the_decay_falls() -> None:
    def roughness(decay: float) -> float:
        field = plasma(128, 128, decay, np.random.default_rng(0))
        assert field.min() == 0
        assert field.max() == 1
        return float(np.abs(np.diff(field)).mean())

    assert roughness(2.0) < roughness(1.7) < roughness(1.4)
    assert plasma(50, 90, 2.0, np.random.default_rng(0)).shape == (50, 90)


def test_fog_keeps_the_maximum_of_the_image() -> None:
    image = (natural_image() * 0.6).astype(np.uint8)
    assert corrupt(image, "fog", 5).max() <= image.max()


def test_ice_comes_in_all_looks_and_has_their_colour() -> None:
    pictures = [ice(96, 96, np.random.default_rng(seed)) for seed in range(30)]
    means = np.array([picture.mean(axis=(0, 1)) for picture in pictures])
    colours = np.array([look.colour for look in ICES])
    distance = np.abs(means[:, None] - colours).max(axis=2)
    assert distance.min(axis=1).max() < 6
    assert set(distance.argmin(axis=1)) == {0, 1, 3, 4}  # 1 and 2 are the same white
    assert min(picture.std() for picture in pictures) > 10


def test_frost_and_snow_brighten() -> None:
    image = natural_image()
    for name in ("frost", "snow"):
        assert corrupt(image, name, 1, seed=3).mean() > image.mean() + 10


# ---- digital ----


@pytest.mark.parametrize("severity", [1, 5])
def test_contrast_equals_the_formula(severity: int) -> None:
    image = natural_image(40, 56)
    factor = (0.4, 0.3, 0.2, 0.1, 0.05)[severity - 1]
    slow = np.empty(image.shape)
    for channel in range(3):
        mean = sum(int(value) for value in image[..., channel].ravel()) / (40 * 56)
        for row, column in np.ndindex(40, 56):
            slow[row, column, channel] = mean + factor * (int(image[row, column, channel]) - mean)
    assert np.abs(corrupt(image, "contrast", severity) - slow + 0.5).max() < 0.51


@pytest.mark.parametrize(("severity", "block"), [(2, 2), (5, 4)])
def test_pixelate_is_the_mean_of_blocks(severity: int, block: int) -> None:
    image = natural_image(48, 64)
    slow = np.empty(image.shape)
    for row in range(0, 48, block):
        for column in range(0, 64, block):
            tile = image[row : row + block, column : column + block]
            slow[row : row + block, column : column + block] = tile.mean(axis=(0, 1))
    assert np.abs(corrupt(image, "pixelate", severity) - slow).max() <= 1  # Pillow rounds after each axis


def test_jpeg_equals_quantised_cosines() -> None:
    table = np.array([  # luminance table of the JPEG standard, Annex K
        [16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56], [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99],
    ])  # fmt: skip
    steps = np.clip((table * (5000 // 10) + 50) // 100, 1, 255)  # quality 10, severity 4
    grey = natural_image(48, 64)[..., 0]
    slow = np.empty(grey.shape)
    for row in range(0, 48, 8):
        for column in range(0, 64, 8):
            block = fft.dctn(grey[row : row + 8, column : column + 8] - 128.0, norm="ortho")
            slow[row : row + 8, column : column + 8] = fft.idctn(np.rint(block / steps) * steps, norm="ortho") + 128
    difference = np.abs(corrupt(grey, "jpeg_compression", 4)[..., 0] - np.clip(slow, 0, 255))
    assert np.quantile(difference, 0.95) <= 1  # a coefficient half-way between two steps may fall on either
    assert difference.mean() < 0.6


def test_elastic_moves_pixels_but_keeps_the_palette() -> None:
    image = natural_image()
    moved = corrupt(image, "elastic_transform", 5)
    assert psnr(moved, image) < 25
    assert np.allclose(moved.mean(axis=(0, 1)), image.mean(axis=(0, 1)), atol=6)
    flat = np.full((64, 64, 3), 90, np.uint8)
    assert np.abs(corrupt(flat, "elastic_transform", 2).astype(int) - 90).max() <= 1


# ---- lens ----


def test_canny_outlines_a_square() -> None:
    plane = np.zeros((40, 40), np.uint8)
    plane[10:30, 12:28] = 180
    edges = lens.canny(plane, 50, 150)
    assert not edges[14:26, 16:24].any()
    assert not edges[:8].any()
    rows, columns = np.nonzero(edges)
    assert {rows.min(), rows.max()} <= {9, 10, 29, 30}
    assert {columns.min(), columns.max()} <= {11, 12, 27, 28}
    assert ndimage.label(edges, np.ones((3, 3)))[1] == 1


def test_equalise_spreads_the_histogram() -> None:
    plane = np.repeat(np.arange(100, 104, dtype=np.uint8), 25).reshape(10, 10)
    assert np.unique(lens.equalise(plane)).tolist() == [0, 85, 170, 255]
    assert lens.equalise(np.full((4, 4), 9, np.uint8)).tolist() == np.zeros((4, 4)).tolist()


def test_mud_is_brown_and_water_is_light() -> None:
    image = natural_image()
    assert corrupt(image, "spatter", 5).mean() < image.mean() - 2
    assert (corrupt(image, "spatter", 3) >= image).all()

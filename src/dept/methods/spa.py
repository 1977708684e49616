"""SPA: self-bootstrapping test-time adaptation. Niu et al., "Self-bootstrapping for versatile test-time adaptation",
ICML 2025.

Tunes the norm layers until two deteriorated views of an image are predicted as the image itself: one lacks some of its
low frequencies, the other is mixed with noise, whose level per patch is learned to be as hard as possible. Only samples
that are predicted more confidently whole than deteriorated are learned from. A linear predictor, the identity at first,
stands before the head for the deteriorated views and is thrown away.
Deviations: noisy images are clipped to the range of their batch (released: to [-1, 1], the range of its preprocessing);
the square of low frequencies is symmetric; batch norm, if any, keeps the source's statistics.
Cost: a forward of the batch, a forward and backward of two views of it. Fails when: the deteriorated views say nothing
about the shift, or batches are so few that the large learning rate (ten times Tent's) has no time to settle.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dept.core.clipping import all_finite
from dept.core.gradient_mean import means
from dept.data.loader import Batch
from dept.methods.norms import NormTuning


class SPA(NormTuning):
    """Predictions of deteriorated views made to agree with those of the whole image."""

    name = "spa"
    title = "SPA"
    summary = "views without low frequencies and with noise predicted as the image itself (Niu et al., ICML 2025)"
    settings = ("online",)
    forwards_per_step = 5.0

    @dataclass(frozen=True)
    class Config(NormTuning.Config):
        """Defaults: the published online pass for ViTs."""

        lr: float = 0.01
        """η of the norm layers"""
        predictor_lr: float = 0.05
        """η of the predictor"""
        low_share: float = 0.2
        """side of the square of low frequencies, as a share of the spectrum's"""
        drop: float = 0.2
        """probability that a low frequency is left out"""
        noise: float = 0.4
        """mean share of noise in a noisy view"""
        noise_patch: int = 16
        """pixels along the side of a patch that has a noise level of its own"""
        noise_lr: float = 1.0
        """η of the noise levels, which climb"""

    config: Config
    state_names = ("predictor", "predictor_velocity", "levels", "levels_velocity")
    presets = {"online": {}}

    def setup(self) -> None:
        """A predictor (D, D) that changes nothing; the noise levels (rows, columns) come with the first images."""
        self.predictor = torch.eye(self.model.head.in_features, device=self.model.head.weight.device)
        self.predictor_velocity = torch.zeros_like(self.predictor)
        self.levels: Tensor | None = None
        self.levels_velocity: Tensor | None = None

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """KL of the prediction of the whole image to those of two deteriorated views   [SPA Eq. L]"""
        images, config, generator = batch.views[0], self.config, self.device_generator()
        with torch.no_grad():
            self._logits = self.model(images)
        self._learned = [tensor.detach().requires_grad_() for tensor in (self.predictor, self._levels_for(images))]
        predictor, levels = self._learned
        masked = without_low_frequencies(images, share=config.low_share, drop=config.drop, generator=generator)
        noise = torch.randn(images.shape[1:], generator=generator, device=images.device)  # one for the whole batch
        noisy = with_noise(images, noise, levels, config.noise_patch)
        features = self.model.read(torch.cat([masked, noisy])).features
        logits: Tensor = self.model.head(F.linear(features, predictor))
        names, parts = ("low_frequencies", "noise"), torch.split(logits, len(images))
        return {name: bootstrap(self._logits, part) for name, part in zip(names, parts, strict=True)}

    def _levels_for(self, images: Tensor) -> Tensor:
        """Noise levels of every patch, the same at first."""
        if self.levels is None:
            rows, columns = (-(-side // self.config.noise_patch) for side in images.shape[-2:])
            self.levels = images.new_full((rows, columns), self.config.noise**0.5)
            self.levels_velocity = torch.zeros_like(self.levels)
        return self.levels

    @torch.no_grad()
    def after_step(self, batch: Batch) -> None:
        """The predictor descends, the noise levels climb; both with the optimiser's momentum."""
        config, levels, climbing = self.config, self.levels, self.levels_velocity
        found, falling = [tensor.grad for tensor in self._learned if tensor.grad is not None], self.predictor_velocity
        assert levels is not None and climbing is not None and len(found) == 2
        predictor, noise = means(found)
        if not all_finite([predictor, noise]):  # the norm layers were not moved either
            return
        falling.mul_(config.momentum).add_(predictor)
        self.predictor.sub_(config.predictor_lr * self.lr_scale(self.progress) * falling)
        climbing.mul_(config.momentum).add_(noise)
        self.levels = rescaled(levels + config.noise_lr * climbing, config.noise)


def bootstrap(whole: Tensor, deteriorated: Tensor) -> Tensor:
    """Mean KL(t ‖ p) over the samples with max t > max p, 0 if there are none: logits (B, C) twice -> ()   [SPA KL]"""
    log_t, log_p = whole.detach().log_softmax(dim=-1), deteriorated.log_softmax(dim=-1)
    stronger = (log_t.amax(dim=-1) > log_p.detach().amax(dim=-1)).to(log_p)
    divergence = (log_t.exp() * (log_t - log_p)).sum(dim=-1)
    return (stronger * divergence).sum() / stronger.sum().clamp_min(1)


def without_low_frequencies(images: Tensor, *, share: float, drop: float, generator: torch.Generator) -> Tensor:
    """Leave out low frequencies at random, channel by channel: (B, channels, H, W), the same back   [SPA view 1]

    Low are those of at most share / 2 of the sampling rate along both axes. A frequency and its negative go together,
    so that the image stays real.
    """
    height, width = images.shape[-2:]
    rows, columns = (torch.fft.fftfreq(side, device=images.device).abs() <= share / 2 for side in (height, width))
    place = torch.arange(height * width, device=images.device).view(height, width)
    negative = place.flip(0, 1).roll((1, 1), (0, 1))
    draws = torch.rand(*images.shape[:2], height * width, generator=generator, device=images.device)
    dropped = (draws < drop)[..., torch.minimum(place, negative)] & rows.unsqueeze(1) & columns
    spectrum: Tensor = torch.fft.fft2(images).masked_fill(dropped, 0.0)
    made: Tensor = torch.fft.ifft2(spectrum).real
    return made


def with_noise(images: Tensor, noise: Tensor, levels: Tensor, patch: int) -> Tensor:
    """(1 - a²) x + a² n with the level a of each patch, in the range of the images   [SPA view 2]

    Args:
        images: (B, channels, H, W); noise: (channels, H, W); levels: a per patch (rows, columns).
    """
    height, width = images.shape[-2:]
    square = levels.square().repeat_interleave(patch, 0).repeat_interleave(patch, 1)[:height, :width]
    low, high = images.aminmax()
    return torch.lerp(images, noise.expand_as(images), square).clamp(low, high)


def rescaled(levels: Tensor, share: float) -> Tensor:
    """Levels of which the mean square is `share`, then cut to [-1, 1]."""
    return (levels * (share / levels.square().mean().clamp_min(1e-12)).sqrt()).clamp(-1.0, 1.0)

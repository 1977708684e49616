"""SAR: towards stable test-time adaptation in dynamic wild world. Niu et al., ICLR 2023.

Entropy minimisation that looks for flat minima: reliable samples only, a sharpness-aware (SAM) gradient, the norm
layers of the first three quarters of the blocks, and a return to the source model when the loss gets so low that
it means collapse. Made for small, mixed or label-shifted batches; batch norm, if any, keeps the source's statistics.
Cost: a forward of all rows, two forwards and backwards of the reliable ones. Fails when: few samples are reliable
(then little happens), or the source is so good that healthy entropies look like collapse (lower `reset_below`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dept.core.adapter import pick
from dept.core.gradient_mean import means
from dept.core.select import early_norms, select
from dept.data.loader import Batch
from dept.methods.base import Group
from dept.methods.tent import Tent


class SAR(Tent):
    """Sharpness-aware and reliable entropy minimisation, with recovery from collapse."""

    name = "sar"
    title = "SAR"
    summary = "sharpness-aware entropy minimisation on reliable samples, with recovery (Niu et al., ICLR 2023)"
    settings = ("online",)
    forwards_per_step = 4.0

    @dataclass(frozen=True)
    class Config(Tent.Config):
        """Defaults: the published online pass. The thresholds scale with ln C.

        The rate is for a batch of 64; scale it in proportion, and double it for single images.
        """

        entropy_margin: float = 0.4
        """E₀ / ln C; only samples of lower entropy are learned from"""
        rho: float = 0.05
        """ρ, length of the step uphill whose gradient is used"""
        loss_momentum: float = 0.9
        """share of the old running loss that stays"""
        reset_below: float = 0.029
        """running loss / ln C below which the source model is restored (0.2 at C = 1000, as published); 0: never"""

    config: Config
    batch_statistics = False  # or leaving rows out of a forward would change the others
    presets = {"online": {}}

    def tuned(self) -> list[Group]:
        """Norm layers of the first three quarters of the blocks: blocks 0-8 of 12, no final norm."""
        return [Group(tuple(early_norms(select(self.model, "norm"))), self.config.lr)]

    def setup(self) -> None:
        """Thresholds, and the running loss that tells a collapse."""
        scale = math.log(self.model.head.out_features)
        self.margin, self.floor = self.config.entropy_margin * scale, self.config.reset_below * scale
        self.parameters = list(pick(self.model, self.trained_names).values())
        self.running_loss: float | None = None

    def step(self, batch: Batch) -> dict[str, float]:
        """Uphill by ρ, the gradient there, back, a step along it; then the check for collapse."""
        images = batch.views[0]
        with torch.no_grad():
            self._logits = self.model(images)
            rows = (self.entropies(self._logits) < self.margin).nonzero().squeeze(1)
        reliable = Batch((images[rows],), batch.index[rows.cpu()])
        loss = self._sharpness_aware_step(reliable) if len(rows) else None
        if loss is None:  # nobody was reliable, before or after the step uphill
            return {"loss": 0.0, "selected": float(len(rows))}
        terms = {"loss": loss, "entropy": loss, "selected": float(len(rows))}
        return terms | {"recovered": float(self._recover(loss))}

    def _sharpness_aware_step(self, batch: Batch) -> float | None:
        """The loss at the point uphill, or None if no row is reliable there and nothing was done."""
        assert self.optimizer is not None
        here = [parameter.detach().clone() for parameter in self.parameters]
        # No second look at the margin here: rounding must not empty what was selected from the whole batch.
        gradients = torch.autograd.grad(self.entropies(self.model(batch.views[0])).mean(), self.parameters)
        with torch.no_grad():
            torch._foreach_add_(self.parameters, uphill(means(gradients), self.config.rho))
        terms = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        if terms:
            terms["entropy"].backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, here)
        if not terms:
            return None
        self.descend()
        return float(terms["entropy"].detach())

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Mean entropy of the rows that are reliable at the current weights; nothing if none is   [SAR S(x) E(x)]"""
        values = self.entropies(self.model(batch.views[0]))
        values = values[values < self.margin]
        return {"entropy": values.mean()} if len(values) else {}

    def _recover(self, loss: float) -> bool:
        """Update the running loss; if it is too low to be true, go back to the source model."""
        kept = self.config.loss_momentum
        self.running_loss = loss if self.running_loss is None else kept * self.running_loss + (1 - kept) * loss
        if self.running_loss >= self.floor:
            return False
        self.reset()  # clears the running loss too; the released code puts the low value back
        return True

    def state_dict(self) -> dict[str, Tensor]:
        """Adds the running loss."""
        state = super().state_dict()
        if self.running_loss is not None:
            state["running_loss"] = torch.tensor(self.running_loss, dtype=torch.float64)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        super().load_state_dict(state)
        self.running_loss = float(state["running_loss"]) if "running_loss" in state else None


def uphill(gradients: Sequence[Tensor], rho: float) -> list[Tensor]:
    """ε = ρ g / ‖g‖, the norm over all tensors together   [SAR Eq. 4]"""
    norm = torch.nn.utils.get_total_norm(gradients)
    return [gradient * (rho / (norm + 1e-12)) for gradient in gradients]

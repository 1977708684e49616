"""Adapter: the tensors that adaptation changed, keyed by the model's `state_dict` names, plus metadata.

Student, EMA teacher, rollback snapshot, the file on disk and a tenant of a server are all this one thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dept.core.sharing import own


@dataclass
class Adapter:
    """Named tensors of one domain over a shared backbone, and the metadata that its file carries."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module, names: Iterable[str]) -> Adapter:
        """A detached copy of the named parameters and buffers of `module`."""
        return cls({name: tensor.detach().clone() for name, tensor in pick(module, names).items()})

    def clone(self) -> Adapter:
        """An independent copy: a snapshot to roll back to."""
        copies = {name: tensor.detach().clone() for name, tensor in self.tensors.items()}
        return Adapter(copies, dict(self.meta))

    @torch.no_grad()
    def ema_(self, student: Mapping[str, Tensor], momentum: float) -> None:
        """teacher <- momentum · teacher + (1 - momentum) · student, over these tensors only."""
        mine = list(self.tensors.values())
        torch._foreach_lerp_(mine, [student[name] for name in self.tensors], 1.0 - momentum)  # [DePT Eq. EMA]

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        """Write the tensors into the module, in place; names that the module does not have are refused."""
        targets = pick(module, self.tensors)
        own(targets.values())
        for name, tensor in self.tensors.items():
            if targets[name].shape != tensor.shape:
                raise ValueError(
                    f"Adapter tensor {name!r} has shape {tuple(tensor.shape)}, the model's is "
                    f"{tuple(targets[name].shape)}: it was made for another model."
                )
            targets[name].copy_(tensor)

    def diff(self, other: Adapter) -> dict[str, float]:
        """Largest absolute difference per tensor; both adapters must hold the same names."""
        if self.tensors.keys() != other.tensors.keys():
            odd = sorted(self.tensors.keys() ^ other.tensors.keys())
            raise ValueError(f"The adapters hold different tensors: {odd[:4]} are in only one of them.")
        return {name: float((t - other.tensors[name]).abs().max()) for name, t in self.tensors.items()}

    @staticmethod
    def stack(adapters: Sequence[Adapter]) -> Adapter:
        """K prompt/head adapters as one, every tensor with a leading axis of length K."""
        if any(name.startswith("backbone.") for adapter in adapters for name in adapter.tensors):
            raise ValueError("Only adapters of prompts and head can share a batch; this one changes the backbone.")
        names = adapters[0].tensors
        return Adapter({name: torch.stack([adapter.tensors[name] for adapter in adapters]) for name in names})

    def gather(self, owners: Tensor) -> Adapter:
        """Of stacked adapters, the one of every sample: owners (B,) -> tensors with a leading axis of length B."""
        return Adapter({name: tensor[owners] for name, tensor in self.tensors.items()})


def pick(module: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    """The named parameters and buffers of `module` (shared storage); unknown names are refused."""
    known = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    wanted = list(names)
    missing = [name for name in wanted if name not in known]
    if missing:
        raise ValueError(f"The model has no tensor named {missing[0]!r} ({len(missing)} unknown names in all).")
    return {name: known[name] for name in wanted}

"""Source domains of a model: prompts that all share, prompts of each domain, and what the domains look like.

Of a stage's P prompts the first S are shared, the other P - S belong to one domain; a model trained on K domains
learns S + K (P - S) of them. A new domain has no prompts of its own: it starts from their mean.

Beyond the paper, the mean may be weighted by how much the new images look like each source domain. A signature
(2, D) holds mean and standard deviation, over images, of patch tokens half-way up the frozen backbone, without any
prompt: there a ViT still sees style, and a change in class balance moves it little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

SHARED, OWN = "domains.shared", "domains.own."
"""names (the second a prefix) of the prompts in the `state_dict` of a model"""


class Domains(nn.Module):
    """The source domains: names, prompts `shared` (M, S, D) and K times `own` (M, P - S, D), signatures (K, 2, D)."""

    signatures: Tensor

    def __init__(self, names: Sequence[str], shared: Tensor, own: Sequence[Tensor]) -> None:
        super().__init__()
        self.names = tuple(names)
        self.shared = nn.Parameter(shared)
        self.own = nn.ParameterList(nn.Parameter(prompts) for prompts in own)
        self.register_buffer("signatures", torch.zeros(len(self.names), 2, shared.shape[-1]))

    def sizes(self) -> dict[str, int]:
        """S and P - S, by the words that files and records use."""
        return {"shared_prompts": self.shared.shape[1], "domain_prompts": self.own[0].shape[1]}

    def joined(self, weights: Tensor | None = None) -> Tensor:
        """Prompts (M, P, D) of a mixture of domains: shared ones, then the mean, by `weights` (K,) if given."""
        own = torch.stack([prompts.detach() for prompts in self.own])
        given = own.new_full((len(own),), 1 / len(own)) if weights is None else weights.to(own)
        return torch.cat([self.shared.detach(), torch.einsum("k,kmpd->mpd", given, own)], dim=1)  # [DePT multi-source]


def is_mean(domains: Domains, prompts: Tensor | None) -> bool:
    """Whether prompts (M, P, D) are still the plain mean of these domains: tuned ones are not."""
    joined = domains.joined()
    return prompts is not None and joined.shape == prompts.shape and torch.allclose(joined, prompts, atol=1e-7)


def prompts_of_samples(tensors: Mapping[str, Tensor], owners: Tensor) -> Tensor:
    """Every sample's prompts (B, M, P, D), shared ones first, for the domains `owners` (B,) of the samples.

    `tensors` holds the prompts by their `state_dict` names: the student's, or a teacher's average. Only domains of
    this batch enter the graph: the others get no gradient instead of one of zeros, so an optimiser leaves them alone,
    momentum and weight decay included.
    """
    present = sorted(set(owners.tolist()))
    rows = torch.tensor([present.index(owner) for owner in owners.tolist()])
    shared = tensors[SHARED]
    per_domain = [torch.cat([shared, tensors[f"{OWN}{number}"]], dim=1) for number in present]
    return torch.stack(per_domain)[rows.to(shared.device)]


@torch.no_grad()
def early_features(backbone: nn.Module, images: Tensor) -> Tensor:
    """Mean patch token (B, D) half-way up a plain ViT, of normalised images (B, channels, H, W)."""
    layers = len(backbone.blocks)  # type: ignore[arg-type]
    tokens: list[Tensor] = backbone.forward_intermediates(  # type: ignore[operator]
        images, indices=[max(layers // 2 - 1, 0)], stop_early=True, intermediates_only=True, output_fmt="NLC"
    )
    return tokens[0].mean(dim=1)


def signature(features: Iterable[Tensor]) -> Tensor:
    """Mean and standard deviation (2, D) over the rows of all batches (B, D), on the CPU."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for batch in features:
        rows = batch.detach().cpu().double()  # a second pass for the deviation is not needed in double precision
        count, total, squares = count + len(rows), total + rows.sum(dim=0), squares + rows.square().sum(dim=0)
    mean = total / count
    deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
    return torch.stack([mean, deviation]).float()


def domain_distances(target: Tensor, sources: Tensor) -> Tensor:
    """Distances (K,) of a signature (2, D) from K others (K, 2, D), in units of the mean distance between those.

    That of normal distributions with independent dimensions (Wasserstein-2), every dimension in units of its
    deviation within a source domain: no dimension counts more because its numbers are larger.
    """
    unit = sources[:, 1].mean(dim=0).clamp_min(1e-6)
    between = torch.pdist((sources / unit).flatten(1)).mean()
    distances: Tensor = torch.linalg.vector_norm(((sources - target) / unit).flatten(1), dim=1)
    return distances / between.clamp_min(1e-6)


def domain_weights(distances: Tensor, temperature: float) -> Tensor:
    """Weights (K,), summing to 1: softmax of the negative distances (K,) over the temperature."""
    return (-distances / temperature).softmax(dim=0)

"""Every loss of the paper: one pure function per equation, tagged at the line that computes its left-hand side.

Letters, fixed here for the whole package:
    B batch, N tokens, P prompts per stage, M stages, D width, C classes, K width of the projection.

Two conventions exist for the terms on prompts and must not be mixed (they differ by a factor of 100 at P = 50):
    "mean"  what the released code does: 1 - cos, averaged over batch and prompts;
    "sum"   the text of the paper: 2 - 2 cos summed over prompts, 1 - cos summed over pairs; batch mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Reduction = Literal["mean", "sum"]
StageWeighting = Literal["softmax", "uniform"]
Entropies = Callable[[Tensor], Tensor]
"""logits (B, C) -> entropies (B,)"""


def entropy(logits: Tensor) -> Tensor:
    """H(p) = -sum_c p_c log p_c of softmax(logits), in nats. (B, C) -> (B,)   [Tent Eq. 1]"""
    log_p = logits.log_softmax(dim=-1)
    return -(log_p.exp() * log_p).sum(dim=-1)


def opinion_entropy(logits: Tensor) -> Tensor:
    """H([b, u]) of beliefs b_c = e^{z_c} / S and uncertainty u = C / S, S = Σ e^z + C. (B, C) -> (B,)   [COME H(b, u)]

    The length of z counts as a constant: the gradient may turn the logits, but not make them confident by growing.
    """
    length = torch.linalg.vector_norm(logits, dim=-1, keepdim=True).detach()
    turned = F.normalize(logits, dim=-1) * length
    # The uncertainty is one more class, whose logit is ln C.
    doubt = torch.full_like(length, math.log(logits.shape[-1]))
    return entropy(torch.cat([turned, doubt], dim=-1))


ENTROPIES: Mapping[str, Entropies] = {"softmax": entropy, "come": opinion_entropy}


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Batch mean of -sum_c y_c log p_c with y = (1 - e) onehot + e / C. (B, C), (B,) or soft (B, C) -> ()

    With `smoothing` e = 0 and labels voted by the memory bank this is the pseudo-label loss L_pl.
    """
    return F.cross_entropy(logits, labels, label_smoothing=smoothing)  # [DePT Eq. L_pl]


def symmetric_cross_entropy(one: Tensor, two: Tensor) -> Tensor:
    """-½ Σ_c (p_c log q_c + q_c log p_c) of the predictions p, q of two logits. (B, C) -> (B,)   [CoTTA L, ROID SCE]"""
    log_p, log_q = one.log_softmax(dim=-1), two.log_softmax(dim=-1)
    return -0.5 * (log_p.exp() * log_q + log_q.exp() * log_p).sum(dim=-1)


def dino(
    student: Tensor,
    teacher: Tensor,
    *,
    center: Tensor,
    student_temperature: float,
    teacher_temperature: float,
) -> Tensor:
    """L_cls = -sum_k t_k log s_k, batch mean, with t = softmax((z_t - c) / τ_t) and s = softmax(z_s / τ_s).

    Args:
        student, teacher: projected CLS tokens (B, K); the gradient reaches the student only.
        center: c, running mean of teacher projections (K,).
    """
    # Without the center one output could win for every image; sharpening (τ_t < τ_s) keeps the target from being even.
    target = ((teacher.detach() - center) / teacher_temperature).softmax(dim=-1)
    return -(target * (student / student_temperature).log_softmax(dim=-1)).sum(dim=-1).mean()  # [DePT Eq. L_cls]


def updated_center(center: Tensor, teacher: Tensor, momentum: float) -> Tensor:
    """c <- m c + (1 - m) mean_b z_t: (K,), (B, K) -> (K,)

    The released code adds the batch *sum* when run in one process, which drives the target to a constant.
    """
    return torch.lerp(teacher.detach().mean(dim=0), center, momentum)  # [DePT Eq. center]


def stage_weights(stages: int, weighting: StageWeighting = "softmax") -> Tensor:
    """Weights (M,) of the per-stage terms, summing to 1: softmax(1..M) as released, or uniform as written."""
    if weighting == "uniform":
        return torch.full((stages,), 1.0 / stages)
    return torch.arange(1, stages + 1, dtype=torch.float32).softmax(dim=0)


def prompt_consistency(
    student: Sequence[Tensor],
    teacher: Sequence[Tensor],
    *,
    weighting: StageWeighting = "softmax",
    reduction: Reduction = "mean",
) -> Tensor:
    """L_prompt = sum_i w_i d_i, d_i the distance of student and teacher aggregated prompts of stage i.

    "mean": d_i = mean_bp (1 - cos(s, t)); "sum": d_i = mean_b sum_p (2 - 2 cos(s, t)).

    Args:
        student, teacher: per stage the projected aggregated prompts (B, P, K).
    """
    distances = [1 - _cosine(s, t.detach()) for s, t in zip(student, teacher, strict=True)]
    if reduction == "mean":
        per_stage = [distance.mean() for distance in distances]
    else:  # squared distance of unit vectors: 2 - 2 cos, summed over prompts
        per_stage = [2 * distance.sum(dim=1).mean() for distance in distances]
    return _weighted(per_stage, weighting)  # [DePT Eq. L_prompt]


def prompt_diversity(
    student: Sequence[Tensor], *, weighting: StageWeighting = "softmax", reduction: Reduction = "mean"
) -> Tensor:
    """L_div = sum_i w_i d_i, d_i the distance 1 - cos(p, q) between the prompts of stage i; subtracted from the loss.

    "mean": all ordered pairs, the zero diagonal included, over P²; "sum": every unordered pair p < q once. Batch mean.

    Args:
        student: per stage the projected aggregated prompts (B, P, K).
    """
    return _weighted([_spread(prompts, reduction) for prompts in student], weighting)  # [DePT Eq. L_div]


def class_diversity(logits: Tensor, eps: float = 1e-8) -> Tensor:
    """Negative entropy of the batch-mean prediction: (B, C) -> (); minimal when classes are used equally.

    [AdaContrast L_div]; not in the text of DePT, but in its released code.
    """
    mean = logits.softmax(dim=-1).mean(dim=0)
    return (mean * (mean + eps).log()).sum()


def bounded_features(features: Tensor) -> Tensor:
    """tanh(LayerNorm(h)) without affine parameters, in (-1, 1): (B, D) -> (B, D)   [CFA h]

    Source statistics and adaptation must apply the very same map.
    """
    return F.layer_norm(features, features.shape[-1:]).tanh()


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosines (B, P) of the vectors of a and b (B, P, K), without a normalised copy of either (K is large)."""
    dot = torch.einsum("bpk,bpk->bp", a, b)
    norms: Tensor = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    return dot / norms.clamp_min(1e-8)


def _spread(prompts: Tensor, reduction: Reduction) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(prompts, dim=-1).clamp_min(1e-8)  # (B, P)
    gram = prompts @ prompts.transpose(-1, -2)  # (B, P, P)
    distance = 1 - gram / (norms.unsqueeze(-1) * norms.unsqueeze(-2))
    # The diagonal is 0 in theory; setting it keeps rounding noise (and its gradient) out of the loss.
    diagonal = torch.eye(distance.shape[-1], dtype=torch.bool, device=distance.device)
    distance = distance.masked_fill(diagonal, 0.0)
    # "sum": each unordered pair stands twice in the matrix.
    return distance.mean() if reduction == "mean" else distance.sum(dim=(1, 2)).mean() / 2


def _weighted(per_stage: Sequence[Tensor], weighting: StageWeighting) -> Tensor:
    terms = torch.stack(list(per_stage))
    return (stage_weights(len(per_stage), weighting).to(terms) * terms).sum()

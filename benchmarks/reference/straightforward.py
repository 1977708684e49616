"""A straightforward DePT step, to measure ours against: what one writes without thinking about cost.

Two full ViTs (student and teacher), prompts concatenated to the tokens and run through timm's blocks, a graph on the
weak view, the teacher called once per view, EMA over every weight, and a bank that renormalises itself for every 64
queries and sorts all similarities. The mathematics is that of `dept.methods.dept`; a test compares the loss terms.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dept.methods.dept import DePT
from dept.models.model import Model


class Network(nn.Module):
    """A whole ViT of its own: blocks, prompts, head, projection heads."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.vit = copy.deepcopy(model.backbone)
        self.prompts = nn.ParameterList(model.prompts.detach().clone().unbind())  # one tensor per stage
        self.head = copy.deepcopy(model.head)
        self.projections = copy.deepcopy(model.projections)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        vit, stages, count = self.vit, len(self.prompts), len(self.prompts[0])
        x = vit.norm_pre(vit._pos_embed(vit.patch_embed(images)))
        layers = len(vit.blocks) // stages
        aggregated = []
        for number, block in enumerate(vit.blocks):
            if number % layers == 0:
                rest = x if number == 0 else torch.cat([x[:, :1], x[:, 1 + count :]], dim=1)
                fresh = self.prompts[number // layers].expand(len(x), -1, -1)
                x = torch.cat([rest[:, :1], fresh, rest[:, 1:]], dim=1)
            x = block(x)
            if number % layers == layers - 1 and number != len(vit.blocks) - 1:
                aggregated.append(x[:, 1 : 1 + count])
        x = vit.norm(x)
        aggregated.append(x[:, 1 : 1 + count])
        return x[:, 0], self.head(x[:, 0]), aggregated


class StraightforwardDePT:
    """The same step as `DePT`, done the obvious way."""

    def __init__(self, model: Model, config: DePT.Config, bank: tuple[Tensor, Tensor]) -> None:
        self.config = config
        self.student, self.teacher = Network(model), Network(model)
        for parameter in (*self.student.vit.parameters(), *self.teacher.parameters()):
            parameter.requires_grad_(False)
        self.features, self.probabilities = (tensor.clone() for tensor in bank)
        self.pointer = 0
        self.center = torch.zeros(1)
        trained = [p for p in self.student.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, config.lr, momentum=0.9, nesterov=True, weight_decay=1e-4)

    def step(self, weak: Tensor, strong_teacher: Tensor, strong_student: Tensor) -> dict[str, float]:
        """One iteration; returns the weighted terms."""
        config = self.config
        features, _, _ = self.student(weak)  # the graph is built and thrown away
        labels = self.vote(features.detach()).argmax(dim=1)
        with torch.no_grad():
            for old, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                old.data = config.ema * old.data + (1 - config.ema) * new.data
            teacher_cls, _, teacher_prompts = self.teacher(strong_teacher)
        student_cls, logits, student_prompts = self.student(strong_student)
        terms = {"pseudo_label": F.cross_entropy(logits, labels)}
        terms |= self.regulariser(student_cls, student_prompts, teacher_cls, teacher_prompts)
        mean = logits.softmax(dim=1).mean(dim=0)
        terms["class_diversity"] = config.w_class * (mean * (mean + 1e-8).log()).sum()
        self.optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()
        for parameter in (*self.student.prompts, *self.student.head.parameters()):
            nn.utils.clip_grad_norm_([parameter], config.clip)
        self.optimizer.step()
        with torch.no_grad():
            features, logits, _ = self.teacher(weak)
        slots = (self.pointer + torch.arange(len(weak))) % len(self.features)
        self.features[slots], self.probabilities[slots] = features, logits.softmax(dim=1)
        self.pointer = (self.pointer + len(weak)) % len(self.features)
        return {name: float(term.detach()) for name, term in terms.items()}

    def vote(self, queries: Tensor) -> Tensor:
        """Sort-based nearest neighbours in chunks, normalising the whole bank for each of them."""
        votes = []
        for chunk in queries.split(64):
            similarity = F.normalize(chunk, dim=1) @ F.normalize(self.features, dim=1).T
            nearest = (1 - similarity).sort(dim=1).indices[:, : self.config.neighbours]
            votes.append(self.probabilities[nearest].mean(dim=1))
        return torch.cat(votes)

    def regulariser(
        self, cls: Tensor, prompts: list[Tensor], teacher_cls: Tensor, teacher_prompts: list[Tensor]
    ) -> dict[str, Tensor]:
        """The three self-supervised terms, prompt by prompt."""
        config = self.config
        ours, theirs = self.student.projections, self.teacher.projections
        with torch.no_grad():
            target_logits = theirs[-1](teacher_cls)
            targets = [head(tokens) for head, tokens in zip(theirs, teacher_prompts, strict=True)]
        target = ((target_logits - self.center) / config.teacher_temperature).softmax(dim=1)
        log_p = (ours[-1](cls) / config.student_temperature).log_softmax(dim=1)
        self.center = config.center_momentum * self.center + (1 - config.center_momentum) * target_logits.mean(dim=0)
        weights = torch.arange(1, len(prompts) + 1).float().softmax(dim=0)
        consistency, diversity = torch.zeros(()), torch.zeros(())
        for weight, head, tokens, wanted in zip(weights, ours, prompts, targets, strict=True):
            projected = head(tokens)
            consistency = consistency + weight * (1 - F.cosine_similarity(projected, wanted, dim=-1)).mean()
            unit = F.normalize(projected, dim=-1)
            distance = (1 - unit @ unit.transpose(1, 2)) * (1 - torch.eye(tokens.shape[1]))
            diversity = diversity + weight * distance.mean()
        return {
            "cls": config.w_cls * -(target * log_p).sum(dim=1).mean(),
            "prompt": config.w_prompt * consistency,
            "prompt_diversity": -config.w_div * diversity,
        }

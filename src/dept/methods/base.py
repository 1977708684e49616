"""The contract of a method: how an adapter is learned from views of unlabelled images.

A method sees views and indices, never labels. It does not log, print, save or pick devices: the engine does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dept.core import schedules
from dept.core.adapter import Adapter, pick
from dept.core.batch_norm import batch_norms, training
from dept.core.clipping import all_finite, clip_each, clip_rows
from dept.core.gradient_mean import GradientMean
from dept.core.select import TRAINING_ONLY, count, freeze_except
from dept.core.sharing import own
from dept.core.vit import AdaptedModel
from dept.data.loader import Batch
from dept.errors import Diverged
from dept.methods.config import BaseConfig, OnlineConfig

__all__ = ["BaseConfig", "Group", "Method", "OnlineConfig", "Passes", "Progress", "part", "prefixed"]


class Passes(Protocol):
    """Called, it passes over all `image_count` adaptation images in their fixed order, as batches of test views."""

    @property
    def image_count(self) -> int: ...
    def __call__(self) -> Iterable[Batch]: ...


@dataclass(frozen=True)
class Group:
    """Parameters that share a learning rate; clip_norm > 0 clips each tensor's gradient to that L2 norm.

    With `by_stage` prompts (M, P, D) count as M tensors.
    """

    names: tuple[str, ...]
    lr: float
    clip_norm: float = 0.0
    by_stage: bool = False


class Progress(NamedTuple):
    """Where the run is: step of total (0 if it has no end), and the epoch (0-based) that the step belongs to."""

    step: int
    total: int
    epoch: int


class Method:
    """Base of all methods. A subclass gives `tuned`, `loss`, and the class attributes below that have no default.

    `name`, `title`, `summary`, `settings` and `relabels` are literals in the class itself, because the registry reads
    them from the source. Flags, help, README table, cost estimates, contract tests and benchmark rows follow.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # display name
    summary: ClassVar[str]  # one line: what it does, and the citation
    settings: ClassVar[tuple[str, ...]]  # where it is meant to be used: "offline", "online", "uda", "train"
    relabels: ClassVar[bool] = False  # only re-labels the batch it predicts, owns no tensors: no adapter, online only

    views: str = "t"  # a letter per view of an image: w weak, s strong, t test
    Config: ClassVar[type[BaseConfig]] = BaseConfig
    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    # Cost of a step in forwards per image: a backward counts one for activations, and one for weights if all move.
    forwards_per_step: ClassVar[float] = 3.0
    passes_per_epoch: ClassVar[int] = 0  # forwards of all images per epoch, beside the steps
    passes_at_start: ClassVar[int] = 0  # the same before the first step, where there are no others
    networks: ClassVar[int] = 1  # networks that are scored: 2 with a teacher
    assumes_balance: ClassVar[bool] = False  # whether it pushes towards predicting all classes equally often
    sorted_classes: ClassVar[bool] = False  # whether it is made for streams whose classes come in blocks
    fewest_images: ClassVar[int] = 8  # per update under guard: from single images a method learns its own mistakes
    window_rate: ClassVar[float] = 1.0  # largest factor on its learning rate if these stand for several smaller batches

    needs_stats: ClassVar[bool] = False  # whether source statistics (see `dept stats`) must be given
    needs_prompts: ClassVar[bool] = False  # whether a model without prompts is given fresh ones
    needs_task: ClassVar[str] = ""  # what source training must have taught the model beside its classes (`aux`)
    enough_steps: ClassVar[int] = 0  # offline: a default length below this is worth a note
    batch_statistics: ClassVar[bool] = False  # whether a step uses and learns the batch norm statistics of the target
    reuses_forward: ClassVar[bool] = False  # whether a step leaves the logits that it began with in `_logits`
    reuses_features: ClassVar[bool] = False  # whether a step moves the head alone and leaves its `_kept_features`
    state_names: ClassVar[tuple[str, ...]] = ()  # attributes (tensor or None) of the state, beside what is tuned
    _logits: Tensor
    _kept_features: Tensor

    def __init__(
        self,
        model: AdaptedModel,
        config: BaseConfig | None = None,
        *,
        seed: int = 0,
        stats: Mapping[str, Tensor] | None = None,
        shares: Sequence[float] = (),
    ) -> None:
        """shares: of the classes in the target, in the order of the logits, if the user has declared them."""
        if self.needs_stats and not stats:
            raise ValueError(
                f"Method {self.name!r} compares the target with source statistics, and `stats` is empty: write them "
                "with `dept stats MODEL SOURCE` and give that file as `stats`."
            )
        self.source_stats = dict(stats or {})
        self.declared_shares = tuple(shares)
        self.model = model
        self.config = self.Config() if config is None else config
        self.generator = torch.Generator().manual_seed(seed)
        self.progress = Progress(0, 1, 0)
        self.skipped_steps = self.skipped_in_a_row = 0
        self.prepare()
        self.groups = self.tuned()
        names = [name for group in self.groups for name in group.names]
        if self.groups and not names:
            raise ValueError(
                f"Method {self.name!r} has nothing to tune: the model has no parameters of the kind it moves."
            )
        freeze_except(model, names)
        self.trained_names = names
        self.adapter_names = [name for name in names if not name.startswith(TRAINING_ONLY)]
        self.norms = batch_norms(model) if self.batch_statistics else {}
        self.norm_buffers = [f"{name}.running_{moment}" for name in self.norms for moment in ("mean", "var")]
        self._counters = [f"{name}.num_batches_tracked" for name in self.norms]  # part of the state, of no adapter
        own(pick(model, names + self.norm_buffers + self._counters).values())
        self.optimizer = self._build_optimizer() if names else None
        self.share_gradients = GradientMean(self._moving())
        self.setup()
        self._initial = {name: tensor.clone() for name, tensor in self.state_dict().items()}

    # -- what a subclass says ------------------------------------------------------------------------------

    @classmethod
    def preset(cls, name: str) -> BaseConfig:
        """The Config of a named preset; ValueError lists the known ones."""
        if name not in cls.presets:
            known = ", ".join(sorted(cls.presets)) or "none"
            raise ValueError(f"Method {cls.name!r} has no preset {name!r}; it has: {known}.")
        return replace(cls.Config(), **cls.presets[name])

    @classmethod
    def scaled(cls, config: BaseConfig, ratio: float) -> BaseConfig:
        """The config for a fraction of the target images: epochs grow so that the steps stay about the same."""
        return replace(config, epochs=int(config.epochs / ratio))

    def prepare(self) -> None:
        """Change the model before parameters are chosen (add projection heads, …)."""

    def tuned(self) -> list[Group]:
        """Parameter groups; those of projection and auxiliary heads never enter the adapter."""
        raise NotImplementedError(f"{type(self).__name__} must say what it tunes.")

    def setup(self) -> None:
        """Create further state once the parameters are chosen."""

    def begin(self, passes: Passes) -> None:
        """Called once before the first step."""

    def refresh(self, passes: Passes, epoch: int) -> None:
        """Called after each epoch (0-based) but the last."""

    def before_step(self, passes: Passes) -> None:
        """Called offline before every step, once `at` has said which one it is."""

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Named, weighted terms; their sum is minimised."""
        raise NotImplementedError(f"{type(self).__name__} must define `loss`, or `step` if it learns without one.")

    def after_step(self, batch: Batch) -> None:
        """Called after the optimiser has moved the parameters."""

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits (B, C) of test views: the read-out that is reported."""
        logits: Tensor = self.model(images)
        return logits

    def readouts(self, images: Tensor) -> dict[str, Tensor]:
        """Probabilities (B, C) of every network and rule that a score is logged for; "student" is the read-out."""
        return {"student": self.predict(images).softmax(dim=-1)}

    def taught_head(self) -> nn.Linear:
        """The auxiliary head, once it is clear that source training has taught it what this method needs."""
        head, task = self.model.auxiliary, self.model.auxiliary_task
        if head is None or task != self.needs_task:
            found = f"only included {task}" if head is not None else "had no second task"
            raise ValueError(
                f"Method {self.name!r} needs a model whose source training included the task {self.needs_task!r}. That "
                f"of this model {found}. Train it by `dept train` with aux={self.needs_task}."
            )
        return head

    @contextmanager
    def fresh_parameters(self) -> Iterator[None]:
        """Parameters created inside are drawn from this method's generator, not from the global one."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=self.generator)))
            yield

    def device_generator(self) -> torch.Generator:
        """A generator where the model is, seeded by this method's own: for draws of many numbers."""
        seed = int(torch.randint(2**31, (), generator=self.generator))
        return torch.Generator(self.model.head.weight.device).manual_seed(seed)

    # -- one step ------------------------------------------------------------------------------------------

    def observe(self, test: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Online: learn from a batch that arrives once, and predict it exactly once.

        Args:
            test: test views (B, channels, H, W) that the logits (B, C) are of; `batch` holds `self.views`, of which a
                first "t" is the same.
        A step that reads the same images anyway (`reuses_forward`, `reuses_features`) saves the second forward.
        """
        config = self.config
        assert isinstance(config, OnlineConfig)
        before, once = config.predict == "before", self.views[0] == "t" and config.steps_per_batch == 1
        if once and self.reuses_forward and before:
            terms = self.step(batch)
            return self.corrected(self._logits.detach()), terms
        if once and self.reuses_features and not before:
            terms = self.step(batch)
            return self.corrected(self.model.head(self._kept_features).detach()), terms
        logits = self.predict(test) if before else None
        terms = self.learn(batch)
        return self.corrected(self.predict(test) if logits is None else logits), terms

    def learn(self, batch: Batch) -> dict[str, float]:
        """Online: the update that a batch causes, of one step or several. Returns the terms of the last one."""
        assert isinstance(self.config, OnlineConfig)
        for _ in range(self.config.steps_per_batch):
            terms = self.step(batch)
        return terms

    def corrected(self, logits: Tensor) -> Tensor:
        """Online: logits (B, C) of a batch in the light of the whole batch; as they are by default."""
        return logits

    def step(self, batch: Batch) -> dict[str, float]:
        """Loss, backward, clipping, optimiser step. Returns the values of the terms."""
        with training(self.norms.values()):
            terms = self.loss(batch)
        total = torch.stack(list(terms.values())).sum()
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        self.descend()
        self.after_step(batch)
        return {"loss": float(total.detach())} | {name: float(term.detach()) for name, term in terms.items()}

    def descend(self) -> None:
        """Clip the gradients and step. Gradients that are not finite are skipped: one bad batch does no harm."""
        assert self.optimizer is not None
        self.share_gradients()
        self.clip()
        tensors = self._moving()
        if not all_finite(tensor.grad for tensor in tensors if tensor.grad is not None):
            self.skipped_steps += 1
            self.skipped_in_a_row += 1
            return
        self.skipped_in_a_row = 0
        self.optimizer.step()
        if not all_finite(tensors):
            raise Diverged(
                f"The parameters are no longer finite after step {self.progress.step} (learning rate {self.lr:g}). "
                "Nothing of this step was saved. Lower `lr`."
            )

    def _moving(self) -> list[Tensor]:
        """All tensors that the optimiser moves."""
        return [tensor for group in self.optimizer.param_groups for tensor in group["params"]] if self.optimizer else []

    def clip(self) -> None:
        """Limit the gradients before the optimiser uses them: tensor by tensor, as the groups say."""
        for group in self.groups:
            if group.clip_norm:
                tensors = pick(self.model, group.names)
                if group.by_stage and "prompts" in tensors:
                    clip_rows(tensors.pop("prompts"), group.clip_norm)
                clip_each(tensors.values(), group.clip_norm)

    def at(self, progress: Progress) -> None:
        """Told by the engine before every step; sets the learning rates."""
        self.progress = progress
        scale = self.lr_scale(progress)
        for group in self.optimizer.param_groups if self.optimizer else ():
            group["lr"] = group["base_lr"] * scale

    @property
    def lr(self) -> float:
        """The learning rate of the first group as it is now; 0 if there is none."""
        return float(self.optimizer.param_groups[0]["lr"]) if self.optimizer else 0.0

    def lr_scale(self, progress: Progress) -> float:
        """Factor on all learning rates at this step."""
        schedule: Callable[[int, int], float] = getattr(schedules, self.config.schedule)
        return schedule(progress.step, progress.total)

    def _build_optimizer(self) -> torch.optim.Optimizer:
        groups = []
        for group in self.groups:
            if group.names:
                tensors = list(pick(self.model, group.names).values())
                groups.append({"params": tensors, "lr": group.lr, "base_lr": group.lr})
        return self.optimizer_over(groups)

    def optimizer_over(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """SGD, unless a method says otherwise."""
        config = self.config
        return torch.optim.SGD(
            groups, momentum=config.momentum, nesterov=config.nesterov, weight_decay=config.weight_decay
        )

    # -- state ---------------------------------------------------------------------------------------------

    def adapter(self) -> Adapter:
        """A copy of the tuned tensors of the read-out, and of the statistics that belong to them."""
        return Adapter.of(self.model, self.adapter_names + self.norm_buffers)

    def counts(self) -> dict[str, int]:
        """`tunable_model`: what the adapter holds (the paper's count); `tunable_total`: with training's own heads."""
        return {
            "tunable_model": count(self.model, self.adapter_names),
            "tunable_total": count(self.model, self.trained_names),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue bit-exactly: tuned tensors, optimiser, generator, `state_names`."""
        moved = pick(self.model, self.trained_names + self.norm_buffers + self._counters)
        state = {f"tuned.{name}": tensor.detach() for name, tensor in moved.items()}
        state["generator"] = self.generator.get_state()
        own = {name: getattr(self, name) for name in self.state_names}
        state |= {name: tensor for name, tensor in own.items() if tensor is not None}
        if self.optimizer is not None:
            for index, slots in self.optimizer.state_dict()["state"].items():
                for key, value in slots.items():
                    if value is not None:
                        state[f"optimizer.{index}.{key}"] = torch.as_tensor(value)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        Adapter(part(state, "tuned")).copy_to(self.model)
        self.generator.set_state(state["generator"].cpu())
        device = self.model.head.weight.device
        for name in self.state_names:
            setattr(self, name, state[name].to(device, copy=True) if name in state else None)
        if self.optimizer is not None:
            slots: dict[int, dict[str, Tensor]] = {}
            for key, value in part(state, "optimizer").items():
                index, name = key.split(".", 1)
                slots.setdefault(int(index), {})[name] = value.clone()
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": slots, "param_groups": groups})

    def reset(self) -> None:
        """Back to the state after construction, exactly."""
        self.load_state_dict(self._initial)

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of the state, without what is large and not missed: optimiser and heads that only training needs."""
        state = self.state_dict().items()
        return {name: tensor.clone() for name, tensor in state if not _left_out(name)}

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Back to a snapshot; what it leaves out is as after construction."""
        left_out = {name: tensor for name, tensor in self._initial.items() if _left_out(name)}
        self.load_state_dict(left_out | snapshot)
        self.skipped_in_a_row = 0


def _left_out(name: str) -> bool:
    """Whether snapshots do without a tensor of the state."""
    return name.startswith("optimizer.") or any(f".{prefix}" in name for prefix in TRAINING_ONLY)


def part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries below `prefix.`, without it."""
    return {name[len(prefix) + 1 :]: tensor for name, tensor in state.items() if name.startswith(prefix + ".")}


def prefixed(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inverse of `part`."""
    return {f"{prefix}.{name}": tensor for name, tensor in state.items()}

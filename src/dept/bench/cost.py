"""Time and memory of tuning steps, measured side by side in one run: ratios, and the seconds and MB they come from.

The paper's protocol: the same loop for every column, entropy loss, random weights and images. Full and Feature are
timm's unmodified forward. Columns are interleaved, so that a busy moment of the machine hits all of them. Ratios of two
machines can be compared, seconds and MB (10^6 bytes) only on the same one.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from dept.bench.flops import Shape, inference_bound, step_bound
from dept.core.adapter import Adapter
from dept.core.losses import entropy
from dept.core.select import count, freeze_except, select
from dept.core.vit import AdaptedModel, dimensions
from dept.data.loader import resolve_device
from dept.errors import UsageError
from dept.models.model import Model, create_model

STAGES = {"S": 1, "G": 4, "D": 12}


@dataclass(frozen=True)
class Column:
    """One way to tune: Full, Feature, LN, or prompts like G50; `checkpoint` recomputes activations."""

    name: str
    checkpoint: bool = False

    @property
    def label(self) -> str:
        """Name in tables and JSON."""
        return f"{self.name}, checkpointed" if self.checkpoint else self.name

    @property
    def stages(self) -> int:
        """M, 0 without prompts."""
        return STAGES.get(self.name[0], 0) if self.name[1:].isdigit() else 0

    @property
    def prompts(self) -> int:
        """P, 0 without prompts."""
        return int(self.name[1:]) if self.stages else 0

    def names(self, model: AdaptedModel) -> list[str]:
        """What is tuned."""
        groups = {"Full": ("all",), "Feature": ("encoder",), "LN": ("norm",)}.get(self.name, ("prompts", "head"))
        return select(model, *groups)


COLUMNS = (
    Column("Full"),
    Column("Feature"),
    Column("LN"),
    *(Column(f"{letter}{prompts}") for prompts in (50, 100) for letter in "SGD"),
    Column("G50", checkpoint=True),
)


class Stepper:
    """The loop's body for one column: entropy loss, backward, SGD with momentum."""

    def __init__(self, column: Column, base: Model, images: Tensor) -> None:
        self.column, self.images = column, images
        self.model = base.with_prompts(column.stages, column.prompts) if column.prompts else base
        self.names = column.names(self.model)
        self.parameters = [self.model.get_parameter(name) for name in self.names]
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-5, momentum=0.9)

    def __call__(self) -> None:
        """One step. The columns share one backbone, so each first says what is tuned."""
        freeze_except(self.model, self.names)
        self.model.configure(checkpointing=self.column.checkpoint)
        loss = entropy(self.model(self.images)).mean()
        self.optimizer.zero_grad(set_to_none=True)  # between forward and backward, as in `Method.step`
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def release(self) -> None:
        """Drop gradients and optimiser state, so that columns do not weigh on each other's memory."""
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()


def measured_model(arch: str, iters: int, device: str, options: Mapping[str, Any]) -> Model:
    """A model of random weights for 12 classes, on a device whose peak of memory can be read."""
    if iters < 1:
        raise UsageError(f"`iters` must be at least 1, found {iters}.")
    found = resolve_device(device)
    if found.partition(":")[0] not in ("cpu", "cuda"):
        raise UsageError(f"Memory cannot be measured on {found!r}. `device` must be cpu or cuda.")
    return create_model(arch, 12, **options).to(found)


def measure_columns(
    arch: str, batch: int, iters: int, columns: tuple[Column, ...] = COLUMNS, device: str = "cpu", **options: Any
) -> dict[str, dict[str, float]]:
    """Ratios, seconds and MB, the FLOP bound and parameters of every column; Full comes first and is the unit."""
    model = measured_model(arch, iters, device, options).train()
    images = torch.randn(batch, model.card.preprocess.channels, *[model.card.preprocess.size] * 2).to(model.device)
    shape = shape_of(model)
    steppers = [Stepper(column, model, images) for column in columns]
    peaks = [peak_bytes(stepper, model) for stepper in steppers]
    seconds = interleaved({s.column.label: s for s in steppers}, iters, model.device)
    unit = columns[0].label
    return {
        column.label: {
            "time_ratio": round(seconds[column.label] / seconds[unit], 3),
            "memory_ratio": round(peak / peaks[0], 3),
            "seconds": significant(seconds[column.label]),
            "megabytes": round(peak / 1e6, 1),
            "flop_bound": round(
                step_bound(column.name, shape, column.stages, column.prompts, checkpoint=column.checkpoint), 3
            ),
            "params": count(stepper.model, stepper.names),
        }
        for column, stepper, peak in zip(columns, steppers, peaks, strict=True)
    }


def measure_inference(
    arch: str, batch: int, iters: int, device: str = "cpu", **options: Any
) -> dict[str, dict[str, float]]:
    """Adapted against plain forward, without gradients; and 32 adapters in one batch against one."""
    model = measured_model(arch, iters, device, options).eval()
    images = torch.randn(batch, model.card.preprocess.channels, *[model.card.preprocess.size] * 2).to(model.device)
    variants = {f"{letter}50": model.with_prompts(stages, 50).eval() for letter, stages in STAGES.items()}
    runs: dict[str, Callable[[], object]] = {"plain": lambda: model(images)}
    for label, variant in variants.items():
        runs[label] = lambda variant=variant: variant(images)  # type: ignore[misc]
    mixed = _mixed(variants["G50"], batch)
    runs["G50 mixed"] = lambda: variants["G50"].read(images, adapter=mixed.gather(torch.arange(batch)))
    with torch.no_grad():
        seconds = interleaved(runs, iters, model.device)
    shape = shape_of(model)
    bounds = {label: inference_bound(shape, STAGES[label[0]], 50) for label in variants} | {"plain": 1.0}
    return {
        label: {
            "time_ratio": round(value / seconds["G50" if "mixed" in label else "plain"], 3),
            "seconds": significant(value),
            "flop_bound": round(bounds.get(label, 1.0), 3),
        }
        for label, value in seconds.items()
    }


def _mixed(model: AdaptedModel, count: int) -> Adapter:
    """As many different adapters as samples."""
    adapters = [model.adapter.clone() for _ in range(count)]
    for adapter in adapters:
        for tensor in adapter.tensors.values():
            tensor.add_(torch.randn_like(tensor) * 0.01)
    return Adapter.stack(adapters)


def interleaved(
    runs: Mapping[str, Callable[[], object]], iters: int, device: torch.device | None = None
) -> dict[str, float]:
    """Median seconds of each run, taken in turns; one unmeasured turn first."""
    finish = synchroniser(device)
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(iters + 1):
        for name, run in runs.items():
            finish()
            start = time.perf_counter()
            run()
            finish()
            if turn:
                samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in samples.items()}


def synchroniser(device: torch.device | None) -> Callable[[], object]:
    """Waits until the device has done its work: a GPU works behind Python's back, and the clock must not run ahead."""
    if device is not None and device.type == "cuda":
        return partial(torch.cuda.synchronize, device)
    return lambda: None


def significant(value: float) -> float:
    """Rounded to four digits: seconds range from microseconds to minutes."""
    return float(f"{value:.4g}")


def peak_bytes(step: Stepper | Callable[[], object], *modules: nn.Module) -> int:
    """Peak of live tensor bytes in a step: weights, activations, gradients, optimiser state.

    Counted from the allocator's own events (on CUDA its peak), not from the size of the process.
    """
    # What earlier runs left behind must not be freed on this one's account.
    gc.collect()
    for module in modules:
        module.zero_grad(set_to_none=True)
    device = next(modules[0].parameters()).device
    peak = _cuda_peak(step, device) if device.type == "cuda" else _cpu_peak(step, modules)
    if isinstance(step, Stepper):
        step.release()
    return peak


def _cuda_peak(step: Callable[[], object], device: torch.device) -> int:
    step()
    torch.cuda.reset_peak_memory_stats(device)
    step()  # starts with optimiser state and gradients in place
    return int(torch.cuda.max_memory_allocated(device))


def _cpu_peak(step: Callable[[], object], modules: Sequence[nn.Module]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
        step()  # the second step starts with optimiser state and gradients in place
    held = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    live = peak = sum(tensor.numel() * tensor.element_size() for tensor in held)
    results: Any = recorded.profiler.kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):  # allocations and releases, in signed bytes
        live += int(event.nbytes())
        peak = max(peak, live)
    return peak


def shape_of(model: Model) -> Shape:
    """The numbers that the FLOP formulas need."""
    return Shape(*dimensions(model.backbone))

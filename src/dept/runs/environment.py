"""Where a run ran: versions, device and processor, which may change the last digits of its numbers."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import NotRequired, TypedDict

import timm
import torch

from dept._version import __version__
from dept.core import collective
from dept.data.loader import Runtime

CPUINFO = Path("/proc/cpuinfo")


class Environment(TypedDict):
    """Versions and hardware of a run."""

    dept: str
    torch: str
    timm: str
    python: str
    device: str
    processor: str
    threads: int
    processes: NotRequired[int]
    """of a run that several have done together"""


def environment(runtime: Runtime) -> Environment:
    """What must be equal for a run to give the same bits again."""
    found: Environment = {
        "dept": __version__,
        "torch": torch.__version__,
        "timm": timm.__version__,
        "python": platform.python_version(),
        "device": runtime.device,
        "processor": processor(runtime.device),
        "threads": torch.get_num_threads(),
    }
    return {**found, "processes": collective.size()} if collective.size() > 1 else found


def processor(device: str) -> str:
    """Name of the GPU, or of the CPU with its family and model and the instructions that torch uses of it."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    text = CPUINFO.read_text(encoding="utf-8", errors="replace") if CPUINFO.exists() else ""
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: *(.*)$", text, re.MULTILINE))
    name = found.get("model name") or platform.processor() or platform.machine()
    # Virtual machines often hide the name, and kernels are chosen by these numbers.
    kind = f" (family {found['cpu family']}, model {found['model']})" if found.keys() >= {"cpu family", "model"} else ""
    return f"{name}{kind}, {torch.backends.cpu.get_cpu_capability()}"

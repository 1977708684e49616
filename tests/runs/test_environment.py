from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dept.data.loader import Runtime
from dept.runs import environment


def test_the_environment_names_all_that_may_change_bits() -> None:
    found = environment.environment(Runtime("cpu"))
    assert {"dept", "torch", "timm", "python", "device", "processor", "threads"} == found.keys()
    assert all(str(value) for value in found.values())


def test_a_processor_is_known_by_name_family_and_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: Some CPU\n" * 2)
    monkeypatch.setattr(environment, "CPUINFO", file)
    used = torch.backends.cpu.get_cpu_capability()
    assert environment.processor("cpu") == f"Some CPU (family 25, model 1), {used}"
    file.write_text("processor : 0\nBogoMIPS : 50\n")  # as on ARM
    assert environment.processor("cpu").endswith(used) and "family" not in environment.processor("cpu")

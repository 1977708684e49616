"""What the tests of several runners need."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from dept.io import read_tensors


def adapter_of(folder: Path) -> dict[str, Tensor]:
    (file,) = folder.glob("adapter*.safetensors")
    return read_tensors(file, "adapter")[0]


def when_begun(folder: Path, act: Callable[[int], None]) -> threading.Thread:
    """Calls `act` with the process that adapts into a folder, after its first steps."""

    def watch() -> None:
        until = time.monotonic() + 300
        while time.monotonic() < until:
            events, holder = folder / "events.jsonl", folder / ".holder"
            if events.exists() and holder.exists() and events.read_text().count('"step"') > 2:
                found = re.search(r"process (\d+)", holder.read_text())
                if found:
                    act(int(found[1]))
                    return
            time.sleep(0.02)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@dataclass
class FakeJob:
    """A job without files."""

    key: str
    finished: bool = False
    error: Exception | None = None

    @property
    def title(self) -> str:
        return self.key

    def done(self) -> bool:
        return self.finished

    def run(self) -> None:
        if self.error is not None:
            raise self.error
        self.finished = True

"""What is there of a data set, beside what should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dept.errors import some

State = Literal["complete", "partial", "missing"]


@dataclass(frozen=True)
class Finding:
    """What is there of one domain, beside what should be."""

    benchmark: str
    domain: str
    path: Path
    found: int
    expected: int
    classes_found: int
    classes_expected: int
    optional: bool = False
    missing_classes: tuple[str, ...] = ()
    unknown_folders: tuple[str, ...] = ()
    missing_files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether a result on this domain is a result on the official data."""
        if self.unknown_folders or self.missing_files or self.problems:
            return False
        return self.found == self.expected and self.classes_found == self.classes_expected

    @property
    def state(self) -> State:
        """complete, partial, or missing (not one image)."""
        return "complete" if self.complete else "partial" if self.found else "missing"

    def __str__(self) -> str:
        parts = [f"{self.found:,} of {self.expected:,} images in {self.path}"]
        if self.classes_found != self.classes_expected:
            names = f", without {some(self.missing_classes)}" if self.missing_classes and self.found else ""
            parts.append(f"{self.classes_found:,} of {self.classes_expected:,} classes{names}")
        if self.unknown_folders:
            parts.append(f"folders that are none of its classes: {some(self.unknown_folders)}")
        if self.missing_files:
            parts.append(f"{len(self.missing_files):,} listed files do not exist (first: {self.missing_files[0]})")
        return "; ".join([*parts, *self.problems])

    def record(self, most: int = 20) -> dict[str, Any]:
        """Everything as JSON; of long lists, the first `most` entries."""
        return {
            "benchmark": self.benchmark,
            "domain": self.domain,
            "images_found": self.found,
            "images_expected": self.expected,
            "complete": self.complete,
            "state": self.state,
            "optional": self.optional,
            "path": str(self.path),
            "classes_found": self.classes_found,
            "classes_expected": self.classes_expected,
            "missing_classes": list(self.missing_classes[:most]),
            "unknown_folders": list(self.unknown_folders[:most]),
            "missing_files": len(self.missing_files),
            "first_missing_files": list(self.missing_files[:most]),
            "problems": list(self.problems),
        }


def overall(findings: Sequence[Finding]) -> State:
    """The state of a data set: complete if every domain is that it cannot do without."""
    if all(finding.complete for finding in findings if not finding.optional):
        return "complete"
    return "partial" if any(finding.found for finding in findings) else "missing"

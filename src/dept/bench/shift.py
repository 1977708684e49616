"""A shift: the source domains that a model learned on, and the target domains that it meets."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Shift:
    """Written "photo->sketch": several source domains are joined by "+", the domains of a stream by ",".

    A source training has no target: "photo".
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Shift:
        """The shift that is written so: the only place where this notation is read."""
        sources, _, targets = text.partition("->")
        return cls(tuple(sources.split("+")), tuple(targets.split(",")) if targets else ())

    def __str__(self) -> str:
        return "+".join(self.sources) + (f"->{self.target}" if self.targets else "")

    @property
    def target(self) -> str:
        """The target side, as it is written."""
        return ",".join(self.targets)

    @property
    def training(self) -> Shift:
        """The source side alone."""
        return Shift(self.sources)

    def single_sources(self) -> list[Shift]:
        """A shift from every source domain by itself."""
        return [replace(self, sources=(source,)) for source in self.sources]


def shifts(*texts: str) -> tuple[Shift, ...]:
    """The shifts of a suite, as they are written."""
    return tuple(map(Shift.parse, texts))

"""A method under guard: it pauses where images do not teach, and goes back where learning did harm.

`Guarded` has the verbs of a method that `Stream` uses. What is watched, and what follows, is in `health/guard.py`.
Here are the forward of the source model, the ring of snapshots, and the way back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dept.data.loader import Batch
from dept.errors import Diverged
from dept.health.guard import Guard, Notice
from dept.methods.base import Method, Progress, part, prefixed
from dept.models.model import Model
from dept.models.stats import source_shares

SNAPSHOTS = 4
SNAPSHOT_BYTES = 2**28
"""of all snapshots together; methods that tune a whole model keep fewer"""
SPACING = 50
"""turns between two snapshots, at least; later an eighth of all turns, so that the ring reaches further back"""
MOST_SKIPPED = 3
"""updates in a row without finite gradients that are an alarm"""


class Guarded:
    """A method that learns under guard. A turn is an update, or a batch that is predicted only."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.source = method.adapter()
        self.guard = Guard(expected_shares(method), pauses=not method.sorted_classes)
        self.window = max(method.fewest_images, method.config.batch)
        # The linear rule of large batches, where a method bears it: a step on the mean of k batches replaces k steps.
        self.faster = min(method.window_rate, self.window / method.config.batch)
        self.early: list[Batch] = []  # windows that came before the source model had seen enough images
        self.updates = self.taken = 0
        self.ring: list[dict[str, Tensor]] = []

    # -- the verbs of a method -----------------------------------------------------------------------------

    def at(self, progress: Progress) -> None:
        """Told before every turn; learning rates fit the window, and are damped after an alarm."""
        self.guard.turns = progress.step
        self.method.at(progress)
        for group in self.method.optimizer.param_groups if self.method.optimizer else ():
            group["lr"] *= self.guard.damping * self.faster

    def observe(self, test: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float] | None]:
        """Predict a batch, and learn from it if that is allowed. No terms: nothing was learned.

        If harm is found, the batch is predicted again by the model that the stream has gone back to.
        """
        self._look(test)
        terms, broken = None, ""
        if self.guard.allowed() and len(batch.index) >= self.method.fewest_images:
            try:
                logits, terms = self.method.observe(test, batch)
            except Diverged:
                broken = "its parameters are no longer finite"
        else:
            logits = self._predicted(test)
        broken = broken or self._trouble(logits)
        if not broken:
            self.guard.hear(logits)
        if found := broken or self.guard.harm():
            self._go_back(found)
            logits = self._predicted(test)
        self._turn_over(terms)
        return logits, terms

    def predict(self, images: Tensor) -> Tensor:
        """Predict images that wait for their update."""
        logits = self.method.predict(images)
        if broken := self._trouble(logits):
            self._go_back(broken)
            logits = self.method.predict(images)
        self._look(images)
        self.guard.hear(logits)
        return logits

    def learn(self, batch: Batch) -> dict[str, float] | None:
        """The update from images that were predicted before, if that is allowed."""
        allowed, found, terms = self.guard.allowed(), self.guard.harm(), None
        if self.guard.undecided:
            self.early.append(batch)
        elif not found and allowed and len(batch.index) >= self.method.fewest_images:
            try:
                terms = self._learn(batch)
            except Diverged:
                found = "its parameters are no longer finite"
        if found:
            self._go_back(found)
        if found or self.guard.paused:
            self.early.clear()
        self._turn_over(terms)
        return terms

    def _learn(self, batch: Batch) -> dict[str, float]:
        """The updates from a window, after those from an early one: one at a time, so that no image waits long."""
        if self.early:
            self.method.learn(self.early.pop(0))
        return self.method.learn(batch)

    # -- the source model, and the way back ----------------------------------------------------------------

    @torch.no_grad()
    def _look(self, images: Tensor) -> None:
        """Ask the source model about images of this turn, if it is time to."""
        if self.guard.due:
            self.guard.look(self.method.model.read(images, adapter=self.source).logits)

    def _predicted(self, test: Tensor) -> Tensor:
        return self.method.corrected(self.method.predict(test))

    def _trouble(self, logits: Tensor) -> str:
        """What is broken beyond doubt, or nothing."""
        if not bool(logits.isfinite().all()):
            return "its predictions are no longer finite"
        if self.method.skipped_in_a_row >= MOST_SKIPPED:
            return f"its gradients were not finite in {MOST_SKIPPED} updates in a row"
        return ""

    def _go_back(self, reason: str) -> None:
        action = self.guard.raise_alarm(reason, snapshots=bool(self.ring))
        if action == "oldest":
            del self.ring[1:]
        elif action != "newest":
            self.ring.clear()
        if self.ring:
            self.method.restore(self.ring[-1])
        else:
            self.method.reset()
            self.method.skipped_in_a_row = 0

    def _turn_over(self, terms: dict[str, float] | None) -> None:
        """Count the turn; keep a snapshot from time to time, of a state that nothing speaks against."""
        self.guard.turn_over()
        self.updates += terms is not None
        turns = self.guard.turns
        if terms is not None and self.guard.clean and turns >= self.taken + max(SPACING, self.taken // 8):
            self.taken = turns
            snapshot = self.method.snapshot()
            room = SNAPSHOT_BYTES // sum(tensor.nbytes for tensor in snapshot.values())
            self.ring = [*self.ring, snapshot][-max(1, min(SNAPSHOTS, room)) :]

    def drain(self) -> list[Notice]:
        """What the guard did since the last call."""
        notices, self.guard.notices = self.guard.notices, []
        return notices

    # -- records and state ---------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """Times that the adapter has changed: by updates, and on the way back."""
        return self.updates + self.guard.alarms

    def record(self) -> dict[str, Any]:
        """What result.json says."""
        guard = self.guard
        return {
            "updates": self.updates,
            "not_learned_from": guard.turns - self.updates,
            "alarms": guard.alarms,
            "learning_rate": guard.damping,
            "state": "stopped" if guard.stopped else "paused" if guard.paused else "learning",
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Guard, counters and snapshots; the method's own state is not part of it."""
        state = prefixed("watch", self.guard.state_dict())
        state["counters"] = torch.tensor([self.updates, self.taken])
        for number, batch in enumerate(self.early):
            views = {str(place): view for place, view in enumerate(batch.views)}
            state |= prefixed(f"early.{number}", {"index": batch.index, **prefixed("views", views)})
        for number, snapshot in enumerate(self.ring):
            state |= prefixed(f"ring.{number}", snapshot)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        self.guard.load_state_dict(part(state, "watch"))
        self.updates, self.taken = state["counters"].tolist()
        device = self.method.model.head.weight.device
        self.early = []
        while window := part(state, f"early.{len(self.early)}"):
            views = [view.to(device) for _, view in sorted(part(window, "views").items())]
            self.early.append(Batch(tuple(views), window["index"].clone().cpu()))
        self.ring = []
        while snapshot := part(state, f"ring.{len(self.ring)}"):
            self.ring.append({name: tensor.clone() for name, tensor in snapshot.items()})


def expected_shares(method: Method) -> tuple[float, ...]:
    """The class shares of the source images, or equal ones if nobody knows."""
    model, classes = method.model, method.model.head.out_features
    known = source_shares(model, method.source_stats) if isinstance(model, Model) else ()
    return tuple(known) or (1 / classes,) * classes

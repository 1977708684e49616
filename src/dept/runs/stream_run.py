"""A stream into a run folder: predictions line by line, events, adapter, resume state, result.

A line of predictions.jsonl is never taken back. After a crash the last saved state is restored, and the images that
were predicted since are learned from again, in the same updates, from their files. So a resumed stream ends in the same
bits, and whoever read the predictions has read the right ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import IO, Any, Literal, cast

from dept.data.arrivals import watched_paths, written_paths
from dept.data.decoding import reason
from dept.data.images import ImageSet, find_images
from dept.data.places import Place, as_place
from dept.data.streams import arranged
from dept.errors import DataError, UsageError
from dept.health.guard import Notice
from dept.io import read_tensors, write_atomic, write_tensors
from dept.methods.base import BaseConfig, OnlineConfig
from dept.metrics import finite
from dept.models.files import adapter_meta, read_model, rest_hash, save_adapter
from dept.models.model import Model
from dept.runs.environment import environment
from dept.runs.folder import Listener, RunFolder, check_steps, silent, stop_signal
from dept.runs.job import RunOptions, with_settings
from dept.runs.loops import Event
from dept.runs.record import Result, places, protocol, skipped_files
from dept.runs.stream import Prepared, Stream, open_stream
from dept.runs.versions import SNAPSHOT, keep
from dept.runs.words import streamed


@dataclass(frozen=True)
class StreamOptions(RunOptions):
    """How a stream runs, beside the method's own Config."""

    order: Literal["shuffled", "as-is"] = "shuffled"
    """order of a folder or list (class-sorted folders are another problem than a stream)"""
    watch: bool = False
    """keep watching the folder for new files until Ctrl-C or SIGTERM"""
    poll: float = 1.0
    """polling interval of a watched folder, in seconds"""
    group: int = 0
    """images predicted together; 0 for the method's batch (from a pipe: each when it comes). Smaller groups are still
    learned from batch by batch"""
    save_every: int = 50
    """updates between two saves of adapter and state"""
    stages: int = 4
    """M of fresh prompts, for a model that has none"""
    prompts: int = 50
    """P of fresh prompts, for a model that has none"""
    stats: str = ""
    """source statistics file from `dept stats` (CFA needs it, EATA can use it)"""
    guard: bool = True
    """pause where images do not teach, go back where learning did harm (docs/guard.md)"""


@dataclass(frozen=True)
class StreamRun:
    """What `stream_into` returns; print it to read it."""

    folder: Path
    result: Result
    model: Model = field(repr=False)
    stopped: bool = False
    """whether it was stopped before all images had come"""

    def __str__(self) -> str:
        return streamed(self.result, self.folder)


def stream_into(
    model: str | Path,
    images: str | Path | IO[bytes] | IO[str],
    *,
    out: str | Path,
    method: str = "dept",
    config: BaseConfig | None = None,
    preset: str | None = None,
    options: StreamOptions | None = None,
    resume: bool = False,
    listener: Listener = silent,
    **settings: Any,
) -> StreamRun:
    """Predict every image once, in order, and adapt on the way. Predictions are written as they are made.

    Args:
        images: a folder, .tar archives, a list file, an address (s3://…), or a pipe that paths are read from, one per
            line.
        config, preset, settings: as in `adapt`; the preset `online` is the default where the method has it.
        resume: continue an earlier stream into the same folder.
    """
    options, settings = with_settings(options or StreamOptions(), settings)
    listed = _listed(images, options)
    folder = RunFolder(out, "adapter.safetensors", resume=resume, stream=True, listener=listener)
    loaded, sha = read_model(model)
    opened = open_stream(
        loaded,
        method=method,
        config=config,
        preset=preset,
        seed=options.seed,
        device=options.device,
        stages=options.stages,
        prompts=options.prompts,
        stats=options.stats or None,
        guard=options.guard,
        **settings,
    )
    session = _Session(opened, sha, options, folder, images, listed)
    stopped = session.run(places(model=model, images=images))
    return StreamRun(folder.path, session.result(), session.model, stopped)


def _listed(images: str | Path | IO[bytes] | IO[str], options: StreamOptions) -> ImageSet | None:
    """The images that are known from the start; looked for before anything is written."""
    if not isinstance(images, (str, Path)):
        return None
    if not options.watch:
        return find_images(images)
    if not Path(images).is_dir():
        raise UsageError(f"`watch` needs a folder; {images} is not a folder.")
    return None


Arrived = tuple[Place, Prepared | None]
"""a new file and its views; None if it does not decode"""


class _Session:
    """One stream into one run folder, from its start or resume to its end."""

    def __init__(
        self,
        stream: Stream,
        sha: str,
        options: StreamOptions,
        folder: RunFolder,
        images: str | Path | IO[bytes] | IO[str],
        listed: ImageSet | None,
    ) -> None:
        self.stream, self.sha, self.options, self.folder = stream, sha, options, folder
        stream.on_alarm = self._guarded
        self.images, self.listed = images, listed
        self.model = cast(Model, stream.method.model)
        self.positions = {text: index for index, text in enumerate(listed.places.texts())} if listed else {}
        alone = isinstance(images, (str, Path))
        self.group = options.group or (stream.batch if alone else 1)
        self.seen: set[str] = set()
        self.earlier: set[str] = set()
        self.skipped: dict[str, str] = {}
        self.predicted = self.lines = self.saved_changes = 0
        self.due = 1  # the first update is saved at once

    def run(self, inputs: dict[str, str]) -> bool:
        """Until the images end, or somebody stops it; returns whether that was so."""
        with self.folder.locked():
            return self._run(inputs)

    def _run(self, inputs: dict[str, str]) -> bool:
        folder, stream = self.folder, self.stream
        given = {entry.name: getattr(self.options, entry.name) for entry in fields(self.options)}
        options = {name: value for name, value in given.items() if value != getattr(StreamOptions, name)}
        folder.predictions.touch()  # before anything else: it tells a stream that was killed from another run
        folder.configure({"protocol": self._protocol(), "options": options, "inputs": inputs})
        if folder.resume:
            self._restore()
        else:
            # Updates of a list that is known from the start; 0 for a stream without an end.
            total = -(-len(self.listed) // stream.batch) if self.listed else 0
            folder.log("start", total=total, notes=stream.notes, inputs=inputs)
        with folder.predictions.open("ab", buffering=0) as output, stop_signal() as stopped:
            for group, last in self._groups(stopped):
                self._predict(group, last, output)
                if stream.steps >= self.due:
                    self._save()
                    self.due = stream.steps + self.options.save_every
                if stopped() and self.listed:
                    break
            if self.options.watch or not stopped():  # a watched folder has no other end
                self._log(stream.finish())
            interrupted = stopped() and not self.options.watch
        self._save()
        folder.finish(self.result())
        if self.lines and not self.predicted:
            path, problem = next(iter(self.skipped.items()))
            raise DataError(f"No image was predicted: none of {self.lines} files decodes (first: {path}: {problem}).")
        return interrupted

    # -- images ---------------------------------------------------------------------------------------------

    def _groups(self, stopped: Callable[[], bool]) -> Iterator[tuple[list[Arrived], bool]]:
        """Groups of new images, and whether nothing comes after them. Broken files do not make a group smaller."""
        group: list[Arrived] = []
        for path, last in self._arriving(stopped):
            if path is not None:
                group.append((path, self._prepared(path)))
            good = sum(made is not None for _, made in group)
            if group and (path is None or last or good in (0, self.group)):
                yield group, last
                group = []
        if group:  # read from a pipe, which does not repeat itself
            yield group, False

    def _arriving(self, stopped: Callable[[], bool]) -> Iterator[tuple[Place | None, bool]]:
        """New paths as they come, and whether each is the last; None when nothing more is there right now."""
        if self.listed is not None:
            order = arranged(self.listed, self.options.order, seed=self.options.seed)
            new = (path for index in order if self._new(path := self.listed.paths[index]))
            yield from ((path, after is None) for path, after in pairwise(chain(new, (None,))))
        elif isinstance(self.images, (str, Path)):
            for found in watched_paths(Path(self.images), stopped, poll=self.options.poll, known=self.seen):
                # A file that did not decode and has changed since was still being written.
                if found is None or str(found) in self.skipped or str(found) not in self.seen:
                    yield found, False
        else:
            yield from ((path, False) for path in written_paths(self.images, stopped) if self._new(path))

    def _new(self, path: Place) -> bool:
        if str(path) in self.seen:
            if str(path) not in self.earlier:
                self.folder.log("note", text=f"{path} was given twice. It is predicted once.")
            return False
        self.seen.add(str(path))
        return True

    def _prepared(self, path: Place) -> Prepared | None:
        """The views of an image, or None and the reason in `skipped`."""
        try:
            made = self.stream.prepare(path, self.positions.get(str(path)))
        except Exception as error:  # Pillow raises many types for broken files; the reason is what matters
            self.skipped[str(path)] = reason(error)
            return None
        self.skipped.pop(str(path), None)
        return made

    # -- predictions ----------------------------------------------------------------------------------------

    def _predict(self, group: list[Arrived], last: bool, output: IO[bytes]) -> None:
        """One line per image, in order; files that do not decode get a line with the reason."""
        update, good = self.stream.steps, [made for _, made in group if made is not None]
        begin = self.lines
        rows: list[dict[str, Any]] = []
        reply = self.stream.feed(good, last=last) if good else None
        best = finite(reply.probabilities).max(dim=-1) if reply else None
        answers = iter(zip(best.values.tolist(), best.indices.tolist(), strict=True) if best else ())
        for path, made in group:
            if made is None:
                rows.append({"path": str(path), "error": self.skipped[str(path)]})
            else:
                confidence, label = next(answers)
                found = {"label": self.model.classes[label], "confidence": round(confidence, 6)}
                rows.append({"path": str(path), **found, "update": update, "group": begin})
        # One call: a group is in the file as a whole or not at all.
        output.write("".join(json.dumps(row) + "\n" for row in rows).encode())
        self.seen |= {str(path) for path, _ in group}
        self.predicted, self.lines = self.predicted + len(good), self.lines + len(group)
        self._log(reply.event if reply else None)

    def _guarded(self, notice: Notice) -> None:
        """What the guard did. After an alarm nobody is to find the harmful adapter: it is replaced at once."""
        self.folder.log("guard", step=notice.step, action=notice.action, reason=notice.reason, text=str(notice))
        if notice.alarm:
            self.due = self.stream.steps

    def _log(self, event: Event | None) -> None:
        if event is not None:
            check_steps(self.stream.method)
            self.folder.log_step(event)

    # -- state ----------------------------------------------------------------------------------------------

    def _save(self) -> None:
        method = self.stream.method
        adapter = method.adapter()
        adapter.meta = adapter_meta(
            self.model,
            backbone_sha256=self.sha,
            rest_sha256=rest_hash(self.model, adapter.tensors),
            method=method.name,
            config=asdict(method.config),
            seed=self.options.seed,
            images=self.predicted,
        )
        if self.stream.changes > self.saved_changes:  # what has not changed since needs no version of its own
            keep(self.folder.path, seen=self.predicted)
            self.saved_changes = self.stream.changes
        save_adapter(adapter, self.folder.product)
        write_tensors(self.folder.path / SNAPSHOT, method.snapshot(), {"kind": "snapshot", "method": method.name})
        meta = {"kind": "stream", "lines": self.lines}
        write_tensors(self.folder.resume_file, self.stream.state_dict(), meta)

    def _restore(self) -> None:
        """The last saved state; then learn from what was predicted since."""
        file = self.folder.predictions
        text = file.read_bytes()
        if not text.endswith(b"\n"):  # a line that a full disk cut short was never a prediction
            text = text[: text.rfind(b"\n") + 1]
            write_atomic(file, text)
        rows = [json.loads(line) for line in text.splitlines()]
        saved = 0
        if self.folder.resume_file.exists():
            tensors, meta = read_tensors(self.folder.resume_file, "stream")
            if meta.get("rewound"):  # by `undo`
                self.stream.rewind(tensors)
            else:
                self.stream.load_state_dict(tensors)
            saved, self.saved_changes = meta["lines"], self.stream.changes
        self.folder.forget_from(self.stream.steps)
        self.skipped = {row["path"]: row["error"] for row in rows if "error" in row}
        self.predicted, self.lines = sum("label" in row for row in rows), len(rows)
        self.seen = {row["path"] for row in rows}
        self.earlier = set(self.seen)
        later = [row for row in rows[saved:] if "label" in row]
        for _, group in groupby(later, key=lambda row: (row.get("update"), row.get("group"))):
            again = [made for row in group if (made := self._prepared(as_place(row["path"]))) is not None]
            if again:
                self._log(self.stream.feed(again).event)
        gone = [row["path"] for row in later if row["path"] in self.skipped]
        if gone:
            note = f"{len(gone)} images that were predicted after the last save are gone and were not learned from."
            self.folder.log("note", text=note)

    # -- records --------------------------------------------------------------------------------------------

    def _protocol(self) -> dict[str, Any]:
        method, options = self.stream.method, self.options
        config = cast(OnlineConfig, method.config)
        record = protocol(
            self.model,
            None,
            method=method,
            config=method.config,
            augment=self.stream.views.augment,
            seed=options.seed,
            backbone_sha256=self.sha,
            setting="stream",
            readout=f"student, direct, predicted {config.predict} the update",
        )
        return cast(dict[str, Any], record)

    def result(self) -> Result:
        """What result.json says of the stream so far."""
        record = {
            "method": self.stream.method.name,
            "images": self.lines,
            "steps": self.stream.steps,
            "skipped": [*(skipped_files(self.listed) if self.listed else ()), *map(list, self.skipped.items())],
            "notes": self.stream.notes,
            **self.stream.method.counts(),
            **({"guard": self.stream.guard.record()} if self.stream.guard else {}),
            "adapter_bytes": self.folder.product.stat().st_size,
            "protocol": self._protocol(),
            "environment": environment(self.stream.runtime),
        }
        return cast(Result, record)

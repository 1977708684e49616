"""What `dept stream` does: one stream into one run folder."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TextIO

from dept.cli.show import say
from dept.cli.stream import StreamFlags
from dept.data.images import decode_problem, find_images, images_below
from dept.data.streams import arranged
from dept.errors import UsageError
from dept.io import FORMAT, make_folder, read_tensors, write_atomic, write_json, write_tensors
from dept.models.files import adapter_meta, load_model, rest_hash, save_adapter
from dept.models.model import Model, fingerprint
from dept.runs.folder import TRACES, refuse_changes, stop_signal
from dept.runs.record import check_seed, places
from dept.runs.stream import Stream, open_stream

RECORDED = ("order", "watch", "poll", "group", "save_every", "stats", "seed", "device")
"""flags beside the method's own settings that config.json keeps, where they are not the default"""


class Session:
    """One stream into one run folder."""

    def __init__(self, files: StreamFlags, config: Any) -> None:
        self.files = files
        self.predictions = files.out / "predictions.jsonl"
        check_seed(files.seed)
        self._check_folder()
        self.listed = self._listed()
        model = load_model(files.model)
        self.sha = fingerprint(model)
        self.stream: Stream = open_stream(
            model, method=files.method, config=config, seed=files.seed, device=files.device, stats=files.stats
        )
        assert isinstance(self.stream.method.model, Model)
        self.model = self.stream.method.model
        self.settings = {"method": files.method, "seed": files.seed, "model": self.sha, **asdict(config)}
        self.group = files.group or (1 if files.images == "-" else config.batch)
        self.seen: set[str] = set()
        self.restored: set[str] = set()
        make_folder(files.out)
        if files.resume:
            self._restore()

    def _check_folder(self) -> None:
        out, resume = self.files.out, self.files.resume
        held = [name for name in (*TRACES, "adapter.safetensors") if (out / name).exists()]
        started, saved = self.predictions.exists(), (out / "resume.safetensors").exists()
        answered = started and self.predictions.stat().st_size > 0
        if answered and not saved:
            raise UsageError(
                f"{out} holds a stream that was killed before its state was saved, so it cannot be resumed. "
                "Choose another --out."
            )
        if started and saved and not resume:
            raise UsageError(f"{out} already holds a stream. Use --resume to continue it, or choose another --out.")
        if not started and held:
            found = ", ".join(held)
            raise UsageError(f"{out} already holds a run that is not a stream ({found}); choose another --out.")
        if not answered and not saved and resume:
            raise UsageError(f"There is nothing to resume in {out}: it has no predictions. Remove --resume.")

    def run(self) -> int:
        due = 1  # the first update is saved at once: from then on, whatever ends the stream, it can go on
        with self.predictions.open("a") as output, stop_signal() as stopped:
            self._record()
            for group in self._groups(stopped):
                self._answer(group, output)
                if self.stream.steps >= due:
                    self._save()
                    due = self.stream.steps + self.files.save_every
                if stopped():
                    break
            if self.files.watch or not stopped():  # a watched folder has no other end
                self.stream.finish()
        self._save()
        say(
            f"{len(self.seen)} images, {self.stream.steps} updates; predictions in {self.predictions}, "
            f"adapter in {self.files.out / 'adapter.safetensors'}."
        )
        return 130 if stopped() and not self.files.watch else 0

    # -- where images come from ----------------------------------------------------------------------------

    def _listed(self) -> list[Path]:
        """The images that are known from the start, in order; looked for before anything is written."""
        files = self.files
        if files.images == "-":
            return []
        if files.watch:
            if not Path(files.images).is_dir():
                raise UsageError(f"--watch needs a folder; {files.images} is not a folder.")
            return []
        images = find_images(files.images)
        return [images.paths[index] for index in arranged(images, files.order, seed=files.seed)]

    def _groups(self, stopped: Callable[[], bool]) -> Iterator[list[Path]]:
        """Groups of new paths; what is in a watched folder is handed out at once, however little."""
        group: list[Path] = []
        for path in self._paths(stopped):
            if path is not None and self._new(path):
                group.append(path)
            if group and (path is None or len(group) >= self.group):
                yield group
                group = []
        if group:
            yield group

    def _paths(self, stopped: Callable[[], bool]) -> Iterator[Path | None]:
        """Paths as they come; None means that nothing more is there right now."""
        files = self.files
        if files.images == "-":
            yield from _typed(stopped)
            return
        if files.watch:
            yield from self._watched(Path(files.images), stopped)
            return
        yield from self.listed

    def _watched(self, folder: Path, stopped: Callable[[], bool]) -> Iterator[Path | None]:
        sizes: dict[Path, int] = {}
        while not stopped():
            for path in images_below(folder):
                # A file that is still being written grows: take it when two scans agree on its size. Ignore files
                # deleted since the last scan.
                size = path.stat().st_size if path.exists() else -1
                if str(path) not in self.seen and 0 <= size == sizes.get(path):
                    yield path
                sizes[path] = size
            yield None
            time.sleep(self.files.poll)

    def _new(self, path: Path) -> bool:
        if str(path) in self.seen:
            if str(path) not in self.restored:
                say(f"{path} was given twice; it is predicted once.")
            return False
        self.seen.add(str(path))
        return True

    # -- answers and state ---------------------------------------------------------------------------------

    def _answer(self, group: list[Path], output: TextIO) -> None:
        """One line per image, in order; files that do not decode get a line with the reason."""
        problems = {path: decode_problem(path) for path in group}
        good = [path for path in group if problems[path] is None]
        ranked = self.stream.feed(good).probabilities.max(dim=-1) if good else None
        answers = iter(zip(ranked.values.tolist(), ranked.indices.tolist(), strict=True) if ranked else ())
        for path in group:
            if problems[path] is not None:
                row: dict[str, Any] = {"path": str(path), "error": problems[path]}
            else:
                confidence, label = next(answers)
                row = {"path": str(path), "label": self.model.classes[label], "confidence": round(confidence, 6)}
            output.write(json.dumps(row) + "\n")
        output.flush()

    def _record(self) -> None:
        """config.json, for `dept report` and for people."""
        files, card, method = self.files, self.model.card, self.stream.method
        record = {
            "arch": card.arch,
            "stages": self.model.stages,
            "prompts": self.model.prompts_per_stage,
            "preprocess": asdict(card.preprocess),
            "augment": asdict(card.augment),
            "method": method.name,
            "views": method.views,
            "config": asdict(method.config),
            "seed": files.seed,
            "backbone_sha256": self.sha,
            "setting": "stream",
        }
        asked = {field.name: getattr(files, field.name) for field in fields(files) if field.name in RECORDED}
        options = {name: value for name, value in asked.items() if value != getattr(StreamFlags, name)}
        inputs = places(model=files.model) | ({} if files.images == "-" else places(images=files.images))
        write_json(files.out / "config.json", {"protocol": record, "options": options, "inputs": inputs})

    def _save(self) -> None:
        out, method = self.files.out, self.stream.method
        adapter = method.adapter()
        adapter.meta = adapter_meta(
            self.model,
            backbone_sha256=self.sha,
            rest_sha256=rest_hash(self.model, adapter.tensors),
            method=method.name,
            config=asdict(method.config),
            seed=self.files.seed,
            images=self.stream.position,
        )
        save_adapter(adapter, out / "adapter.safetensors")
        meta = {"format": FORMAT, "kind": "stream", "settings": self.settings, "lines": len(self.seen)}
        write_tensors(out / "resume.safetensors", self.stream.state_dict(), meta)

    def _restore(self) -> None:
        """Back to the last saved state; later predictions are dropped and made again, to the same bits."""
        tensors, meta = read_tensors(self.files.out / "resume.safetensors", "stream")
        now = json.loads(json.dumps(self.settings))
        refuse_changes(self.files.out, meta["settings"], now, "choose another --out")
        self.stream.load_state_dict(tensors)
        lines = self.predictions.read_text().splitlines()[: meta["lines"]]
        write_atomic(self.predictions, "".join(line + "\n" for line in lines).encode())
        self.restored = {json.loads(line)["path"] for line in lines}
        self.seen = set(self.restored)


def _typed(stopped: Callable[[], bool]) -> Iterator[Path]:
    """Paths from stdin, one per line, each as soon as it is there; waiting for the next one hears Ctrl-C."""
    # Unbuffered, so that `select` knows of every line that has come.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
        while not stopped():
            if not select.select([lines], [], [], 0.2)[0]:
                continue
            line = lines.readline()
            if not line:
                return
            if line.strip():
                yield Path(os.fsdecode(line.rstrip(b"\r\n")))

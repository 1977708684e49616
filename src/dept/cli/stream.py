"""`dept stream MODEL IMAGES|-`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import tyro

from dept import methods
from dept.cli.parse import choose, parse
from dept.cli.show import say
from dept.data.folder import SUFFIXES, decode_problem, find_images
from dept.data.streams import arranged
from dept.errors import UsageError
from dept.files import FORMAT, adapter_meta, load_model, read_tensors, save_adapter, write_tensors
from dept.models import Model, fingerprint
from dept.runs import stop_signal
from dept.streaming import Stream, open_stream


@dataclass(frozen=True)
class Files:
    """Where images come from and predictions go."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """model file"""
    images: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES|-")]
    """folder, list file, or - for paths on stdin, one per line"""
    out: Path
    """run folder: predictions.jsonl, adapter.safetensors, resume.safetensors"""
    method: str = "dept"
    """how to adapt; `dept methods` lists them. Its own settings are below"""
    preset: str | None = None
    """named settings of the method (default: online)"""
    order: Literal["shuffled", "as-is"] = "shuffled"
    """order of a folder or list (class-sorted folders are another problem than a stream)"""
    watch: bool = False
    """keep watching the folder for new files until Ctrl-C"""
    poll: float = 1.0
    """seconds between two looks at a watched folder"""
    group: int = 0
    """images predicted together; 0 for the method's batch. Smaller groups are still learned from batch by batch"""
    save_every: int = 50
    """batches between two saves of adapter and state"""
    resume: bool = False
    """go on where an earlier stream into the same folder stopped"""
    stats: Path | None = None
    """source statistics file from `dept stats` (CFA needs it, EATA can use it)"""
    seed: int = 0
    """seed of order and views"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""


def run(argv: list[str]) -> int:
    """Predict every image once, in order, flushed at once; adapt on the way."""
    kind, config = choose(methods.get, argv, "dept", prefer="online")
    description = f"Predict a stream of images while adapting to it.\n\n{kind.name}: {kind.summary}"
    command = parse("stream", description, argv, files=Files, config=config)
    return _Session(command.files, command.config).run()


class _Session:
    """One stream into one run folder."""

    def __init__(self, files: Files, config: Any) -> None:
        self.files = files
        self.predictions = files.out / "predictions.jsonl"
        if self.predictions.exists() and not files.resume:
            raise UsageError(f"{files.out} already holds a stream. Go on with it by --resume, or choose another --out.")
        model = load_model(files.model)
        self.sha = fingerprint(model)
        self.stream: Stream = open_stream(
            model, method=files.method, config=config, seed=files.seed, device=files.device, stats=files.stats
        )
        assert isinstance(self.stream.method.model, Model)
        self.model = self.stream.method.model
        self.group = files.group or config.batch
        self.seen: set[str] = set()
        self.restored: set[str] = set()
        files.out.mkdir(parents=True, exist_ok=True)
        if files.resume:
            self._restore()

    def run(self) -> int:
        saved = 0
        with self.predictions.open("a") as output, stop_signal() as stopped:
            for group in self._groups(stopped):
                self._answer(group, output)
                if self.stream.steps >= saved + self.files.save_every:
                    self._save()
                    saved = self.stream.steps
                if stopped():
                    break
            else:
                self.stream.finish()
        self._save()
        say(
            f"{len(self.seen)} images, {self.stream.steps} updates; predictions in {self.predictions}, "
            f"adapter in {self.files.out / 'adapter.safetensors'}."
        )
        return 130 if stopped() and not self.files.watch else 0

    # -- where images come from ----------------------------------------------------------------------------

    def _groups(self, stopped: Any) -> Iterator[list[Path]]:
        """Groups of new paths. A group is never waited for: what is there is handed out."""
        group: list[Path] = []
        for path in self._paths(stopped):
            if path is not None and self._new(path):
                group.append(path)
            if group and (path is None or len(group) >= self.group):
                yield group
                group = []
        if group:
            yield group

    def _paths(self, stopped: Any) -> Iterator[Path | None]:
        """Paths as they come; None means that nothing more is there right now."""
        files = self.files
        if files.images == "-":
            yield from (Path(line.rstrip("\n")) for line in sys.stdin if line.strip())
            return
        if files.watch:
            yield from self._watched(Path(files.images), stopped)
            return
        images = find_images(files.images)
        for index in arranged(images, files.order, seed=files.seed):
            yield images.paths[index]

    def _watched(self, folder: Path, stopped: Any) -> Iterator[Path | None]:
        if not folder.is_dir():
            raise UsageError(f"--watch needs a folder; {folder} is none.")
        sizes: dict[Path, int] = {}
        while not stopped():
            for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()):
                # A file that is still being written grows: take it when two looks agree on its size.
                size = path.stat().st_size
                if str(path) not in self.seen and sizes.get(path) == size:
                    yield path
                sizes[path] = size
            yield None
            time.sleep(self.files.poll)

    def _new(self, path: Path) -> bool:
        if str(path) in self.seen:
            if str(path) not in self.restored:
                say(f"{path} came twice; it is predicted once.")
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

    def _save(self) -> None:
        out, method = self.files.out, self.stream.method
        adapter = method.adapter()
        adapter.meta = adapter_meta(
            self.model, backbone_sha256=self.sha, method=method.name, seed=self.files.seed, images=self.stream.position
        )
        save_adapter(adapter, out / "adapter.safetensors")
        meta = {"format": FORMAT, "kind": "resume", "method": method.name, "lines": len(self.seen)}
        write_tensors(out / "resume.safetensors", self.stream.state_dict(), meta)

    def _restore(self) -> None:
        """Back to the last saved state; later predictions are dropped and made again, to the same bits."""
        tensors, meta = read_tensors(self.files.out / "resume.safetensors", "resume")
        if meta["method"] != self.files.method:
            raise UsageError(f"{self.files.out} was made by --method {meta['method']}, not {self.files.method}.")
        self.stream.load_state_dict(tensors)
        lines = self.predictions.read_text().splitlines()[: meta["lines"]]
        self.predictions.write_text("".join(line + "\n" for line in lines))
        self.restored = {json.loads(line)["path"] for line in lines}
        self.seen = set(self.restored)

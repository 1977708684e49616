"""Runs the commands of the documentation as they stand, in a folder that has everything they speak of, in small.

Where a command would take hours, a GPU or a network, `CHANGES` says what is run instead, and why. `NOT_RUN` has the
programs that are not run at all.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import dept
from dept import methods
from dept.bench.execute import Executor
from dept.bench.runner import Cell
from dept.cli.main import main
from dept.data.datasets.table import PACS_CLASSES, VISDA_CLASSES
from dept.errors import DataError
from dept.models.model import Model, create_model
from dept.runs.train import train
from doc_pages import ROOT, Block, Command, blocks, commands, name_of
from foreign_models import config_of, folder, vit_tensors
from support import ARCH, CLASSES, PROJECTION, TIMM, tiny_model, write_labelled, write_unlabelled


class Change(NamedTuple):
    """What is run instead of a part of a command."""

    pages: str
    part: str
    instead: str
    why: str


TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 12, "num_heads": 2}
SMALL = """--timm '{"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 12, "num_heads": 2}'"""
ROWS = "--methods SHOT DePT-G --shifts sketch --seeds 0 --max-iters 2"
CHANGES = (
    Change("settings", r"--max-iters \d+", "--max-iters 3", "takes minutes"),
    Change("methods/", "(dept uda .*)", r"\1 --max-iters 3", "takes minutes"),
    Change("speed", "(dept bench cost.*)", rf"\1 {SMALL}", "a ViT-B/16 takes minutes"),
    Change("speed", "--batch (8|32)", "--batch 4", "takes minutes"),
    Change("speed", "(.*compare_full.py.*)", rf"\1 --arch {ARCH} --batch 1 --iters 1", "a ViT-B/16 takes minutes"),
    Change("speed", "(.*compare_step.py.*)", rf"\1 --arch {ARCH} --batch 1 --bank 99 --iters 1", "takes minutes"),
    Change("speed", "(.*bf16_speed.py --measure)", r"\1 --iters 1 --size 32", "takes minutes"),
    Change("protocols|reproduce", "(dept bench pacs-mini --data.*)", rf"\1 {ROWS}", "all rows take a day"),
    Change("reproduce", r"(dept bench visda .* vit_base\S+)", r"\1 --methods tent --seeds 2020", "it takes weeks"),
    Change("reproduce", "(dept bench visda --data.*)", r"\1 --max-iters 2 --limit 12", "one row takes hours"),
    Change("reproduce", "--device cuda", "--device cpu", "needs a GPU"),
    Change("reproduce", "(dept bench imagenet-c-mini.*)", r"\1 --methods neo --shifts snow/5", "it takes hours"),
    Change("reproduce", "(dept bench digits)", r"\1 --methods tent --seeds 0 --limit 20", "takes minutes"),
    Change("torchrun", "--nproc-per-node 8 -m", "--nproc-per-node 2 -m", "needs eight GPUs"),
    Change("torchrun", "8 (.*) HOST:29500", r"1 \1 127.0.0.1:PORT", "needs two machines: started twice here"),
    Change("torchrun", "(.* dept adapt .*)", r"\1 --max-iters 2", "takes minutes"),
    Change("torchrun", "(.* dept train .*)", r"\1 --epochs 1 --no-fit-length", "takes minutes"),
    Change("torchrun", 'out="runs/python"', 'max_iters=2, out="runs/python"', "takes minutes"),
    Change("torchrun", "(.* dept train .*)", rf"\1 --arch {ARCH} --no-pretrained --prompts 2 {SMALL}", "a ViT-B/16"),
    Change("serve", "(dept serve .*)", r"\1 --port PORT", "port 8000 may be taken"),
    Change("serve", "127.0.0.1:8000", "127.0.0.1:PORT", "port 8000 may be taken"),
    Change("large_inputs|fleet", "s3://bucket/", "file://PLACE/bucket/", "needs a storage on the network"),
    Change("fleet", "/data/", "PLACE/data/", "absolute paths"),
    Change("fleet", "/shared/", "PLACE/shared/", "absolute paths"),
    Change("fleet", "--address .* --cpus 3", "--address CLUSTER", "needs a cluster with GPUs"),
    Change("fleet", "(dept fleet .*)", r"\1 --max-iters 2", "takes minutes"),
    Change("fleet", "(dept bench pacs-mini)", rf"\1 --weights vit_tiny.safetensors {ROWS}", "all rows take a day"),
)
"""by a part of the page's name and a part of the command, both regular expressions"""
NOT_RUN = {
    "pip": "installs from the network: extras are checked, and tests/test_packaging.py installs the wheel",
    "uv": "installs from the network: tests/test_packaging.py runs the set-up of make",
    "make": "installs from the network: targets are checked, and tests/test_demo.py runs the demo",
    "tritonserver": "is another project's: tests/export/test_serving.py reads its configuration",
}
"""programs that no test runs, and why"""
PROGRAMS = {"dept", "python", "torchrun", "curl"}
RUN_BY = {
    "python benchmarks/write_tables.py --check": "tests/bench/test_tables.py",
    "python benchmarks/write_method_pages.py --check": "tests/test_docs.py",
}
"""commands that another test runs as they stand"""


def applies(change: Change, page: str, text: str) -> bool:
    return bool(re.search(change.pages, page) and re.search(change.part, text))


def changed(page: str, text: str) -> str:
    """The text of a command with the changes of its page."""
    for change in CHANGES:
        if applies(change, page, text):
            text = re.sub(change.part, change.instead, text)
    return text


# ---- running ----


@dataclass
class World:
    """A folder that commands run in."""

    folder: Path
    values: dict[str, str] = field(default_factory=dict)
    """of the words PLACE, PORT and CLUSTER in `CHANGES`, and of shell variables"""
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run_page(self, name: str, *, test: str = "", codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """Run all blocks of a page in their order, as a reader would; returns what the Python has named.

        Args:
            test: the test that runs the page, if blocks are marked with it.
            codes: exit codes that are fine.
        """
        names: dict[str, Any] = {}
        for block in blocks(ROOT / name):
            if block.kind == "csv":
                (self.folder / "sites.csv").write_text(self.filled(changed(name, block.text)))
            elif block.kind == "python" and block.mark in ("", f"run by {test}"):
                self.run_python(block, names)
            for command in commands(block.text) if block.kind == "bash" else ():
                words = shlex.split(self.filled(changed(name, shlex.join(command.words))))
                code = self.run(Command(words, command.output))
                if words[:2] == ["dept", "doctor"] and code == DataError.exit_code:
                    continue  # random weights may well make predictions that the doctor does not like
                assert code in codes, f"{block}: {shlex.join(words)} ended with {code}"
        return names

    def filled(self, text: str) -> str:
        for name, value in self.values.items():
            text = re.sub(rf"\$?\b{name}\b", value, text)
        return text

    def run_python(self, block: Block, names: dict[str, Any]) -> None:
        if "joined()" in block.text:  # "in a script that torchrun starts"
            (self.folder / "script.py").write_text(changed(name_of(block.page), block.text))
            assert self.torchrun(["--nproc-per-node", "2", "script.py"]) == 0, str(block)
        else:
            exec(compile(block.text, str(block), "exec"), names)

    def run(self, command: Command) -> int:
        """Run a command; returns its exit code."""
        program, *given = command.words
        if program in NOT_RUN or shlex.join(command.words) in RUN_BY:
            return 0
        assert program in PROGRAMS
        words = [found for word in given for found in self.matching(word)]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = int(getattr(self, program)(words))
        if words[0] == "token":
            self.values["TOKEN"] = said.getvalue().strip()
        if command.output:
            (self.folder / command.output).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / command.output).write_text(said.getvalue())
        return code

    def matching(self, word: str) -> list[str]:
        """What a shell makes of a word with a star."""
        if "*" not in word:
            return [word]
        return sorted(file.relative_to(self.folder).as_posix() for file in self.folder.glob(word)) or [word]

    def dept(self, words: list[str]) -> int:
        if words[0] == "serve":
            return self.serve(words)
        if words[0] == "judge":
            label(self.folder / words[1] / "check" / "labels.csv", self.folder / words[2])
        try:
            return main(words)
        except SystemExit as end:  # after a page of help
            return int(end.code or 0)

    def python(self, words: list[str]) -> int:
        file = ROOT / words[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [str(file), *words[1:]])
            patch.syspath_prepend(str(file.parent))
            patch.setenv("COLUMNS", "80")
            try:
                runpy.run_path(str(file), run_name="__main__")
            except SystemExit as stop:
                return int(stop.code or 0)
        return 0

    def torchrun(self, words: list[str]) -> int:
        """Start it on every machine that the command speaks of, here on one."""
        machines = 2 if "--nnodes" in words else 1
        argv = [sys.executable, "-m", "torch.distributed.run", *words]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        started = [subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL) for _ in range(machines)]
        try:
            return max(process.wait(600) for process in started)
        finally:
            for process in started:
                process.terminate()
                process.wait(30)

    def curl(self, words: list[str]) -> int:
        done = subprocess.run(["curl", "--fail", "--silent", *words], capture_output=True, text=True, timeout=60)
        print(done.stdout)
        return done.returncode

    def serve(self, words: list[str]) -> int:
        """Start the server and wait until it answers."""
        self.servers.append(subprocess.Popen([sys.executable, "-m", "dept", *words]))
        until = time.monotonic() + 600
        while time.monotonic() < until and self.servers[-1].poll() is None:
            with contextlib.suppress(urllib.error.URLError):
                return int(urllib.request.urlopen(f"http://127.0.0.1:{self.values['PORT']}/ready").status != 200)
            time.sleep(0.2)
        return 1

    def stop(self) -> None:
        for server in self.servers:
            server.terminate()
            server.wait(60)


def label(table: Path, file: Path) -> None:
    """What a person would send back: the table of `dept check`, filled in."""
    with table.open(newline="") as rows:
        images = [row["image"] for row in csv.DictReader(rows)]
    file.write_text("image,right\n" + "".join(f"{image},after\n" for image in images))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- what the commands find ----

NAMED = ("bus", "car", "truck")
LABELLED = {"photos": 12, "SOURCE": 12, "photo": 4, "art": 4, "labelled": 4, "source": 4, "SOURCE_A": 4, "SOURCE_B": 4}
"""folders of labelled images, with how many of each class"""
UNLABELLED = {"new_site": 36, "images": 12, "IMAGES": 12, "TARGET": 36, "sites/a": 6, "sites/b": 6, "data/north": 6}
VIT_BASE = "vit_base_patch16_224.augreg_in21k_ft_in1k.safetensors"
VIT_TINY = "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"


def build(root: Path) -> None:
    """Write everything that the pages speak of, in small."""
    torch.manual_seed(1234)
    for name, count in LABELLED.items():
        write_labelled(root / name, count)
        for ours, theirs in zip(CLASSES, NAMED, strict=True):
            (root / name / ours).rename(root / name / theirs)
    for name, count in (UNLABELLED | {"bucket/site": 6, "bucket/west": 6}).items():
        write_unlabelled(root / name, count)
    Image.open(root / "new_site/img000.png").save(root / "photo.jpg")
    shutil.copy(root / "photo.jpg", root / "new_site")
    with tarfile.open(root / "data/south.tar", "w") as archive:
        archive.add(root / "data/north", ".")
    (root / "shares").mkdir()
    (root / "shares/west.json").write_text('{"bus": 0.5, "car": 0.3, "truck": 0.2}')
    _models(root)
    _data_sets(root / "DATA")


def _models(root: Path) -> None:
    named = config_of("vit", num_hidden_layers=4, id2label=dict(enumerate(NAMED)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("foreign_models.LAYERS", 4)  # as many as prompts have stages
        folder(root / "my_vit", vit_tensors(), named)
    # With what the methods need that need most: prompts, projections, and TTT's rotation head.
    settings = {"epochs": 2, "batch": 8, "lr": 5e-3, "aux": "rotation", **PROJECTION}
    run = train(tiny_model(NAMED).train(), root / "SOURCE", out=root / "runs/source", device="cpu", **settings)
    dept.adapt(run.file, root / "images", out=root / "runs/site", method="neo", accept=True, device="cpu")
    for name in ("model.safetensors", "MODEL"):
        shutil.copy(run.file, root / name)
    assert main(["stats", str(run.file), str(root / "SOURCE"), "--out", str(root / "STATS")]) == 0
    (root / "pool").mkdir()
    shutil.copy(root / "runs/site/adapter.safetensors", root / "pool/site_a.safetensors")
    tensors = timm.create_model(ARCH, **TINY).state_dict()
    for name in (VIT_BASE, VIT_TINY, "vit_tiny.safetensors", "FILE.safetensors"):
        save_file(tensors, root / name)


def _data_sets(root: Path) -> None:
    """VisDA-C, PACS and ImageNet in their official layouts."""
    rng = np.random.default_rng(0)

    def write(folder: Path, count: int, size: int = 40) -> list[Path]:
        folder.mkdir(parents=True)
        for number in range(count):
            Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(folder / f"{number}.jpg")
        return sorted(folder.iterdir())

    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        for name in PACS_CLASSES:
            write(root / "pacs" / domain / name, 6 if domain == "photo" else 3)
    for split in ("train", "validation"):
        home = root / "visda-c" / split
        lines = [
            f"{file.relative_to(home)} {number}"
            for number, name in enumerate(VISDA_CLASSES)
            for file in write(home / name, 3)
        ]
        (home / "image_list.txt").write_text("\n".join(lines))
    for wnid in ("n01440764", "n01443537", "n01484850"):  # the first of ImageNet's
        write(root / "imagenet-val" / "val" / wnid, 2, 224)


class SmallExecutor(Executor):
    """Runs the cells of any suite with a tiny backbone, on whatever there is of a data set."""

    def _fresh_model(self, cell: Cell, classes: tuple[str, ...]) -> Model:
        tiny = {"size": 224, "timm": TINY}  # which has a size of its own
        return super()._fresh_model(replace(cell, protocol=cell.protocol | tiny), classes)

    def _domain(self, name: str, most: int | None) -> Any:
        partial = replace(self, domains=replace(self.domains, allow_partial=True))
        return super(SmallExecutor, partial)._domain(name, most)


@cache
def _tiny() -> Any:
    create = create_model

    def tiny(arch: str, classes: Any, *, pretrained: bool = False, **options: Any) -> dept.Model:
        if not pretrained:
            return create(arch, classes, **options)
        kept = {name: value for name, value in options.items() if name in ("stages", "prompts", "seed")}
        return create(arch.split(".")[0], classes, **{**kept, "stages": 2, "prompts": 3}, **TIMM)

    return tiny


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Short runs on tiny models: defaults are long enough to learn something."""
    for room in ("train", "auto"):
        patch.setattr(f"dept.runs.{room}.LEAST_STEPS", 1)
    for name in methods.available("offline"):
        patch.setattr(methods.get(name), "enough_steps", 1)
    patch.setattr("dept.models.model.create_model", _tiny())
    patch.setattr("dept.bench.execute.Executor", SmallExecutor)
    for name, values in {"PROMPTS": (0, 5), "BANKS": (50, 99), "EPOCHS": (1, 2)}.items():
        patch.setattr(f"dept.bench.growth.{name}", values)
    patch.setattr("dept.methods._OWN", {})  # a page registers a method of its own


def open_world(page: str, built: Path, folder: Path, patch: pytest.MonkeyPatch) -> World:
    """A copy of what was built, without what the page makes itself."""
    shutil.copytree(built, folder, dirs_exist_ok=True)
    text = (ROOT / page).read_text(encoding="utf-8")
    for made in ("model.safetensors", "runs/site", "runs/source"):
        if f"--out {made}" in text:
            shutil.rmtree(folder / made) if (folder / made).is_dir() else (folder / made).unlink()
    shorten(patch)
    patch.chdir(folder)
    patch.setenv("DEPT_DATA", str(folder / "DATA"))
    return World(folder, {"PLACE": str(folder), "PORT": str(free_port())})

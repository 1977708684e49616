"""Mutated model, adapter and statistics files: each is refused with a sentence, or loads to the same bits.

Forged files, which carry a right digest over wrong metadata, may load to something else, but must not crash.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from attack.stage import MEMORY, Outcome, Row, Stage, ended, forked, same, tensors_of

ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2, 1e308, float("nan"), 10**9, 10**30, "", "x" * 3000, "\x1b[31m", "/dev/zero", "hf-hub:a/b",
    "local-dir:/tmp", [], [[]], {}, {"a": {"b": []}}, [1, "a"], ["a", "a"], "NaN", -5, 0.5, [0, 0, 0],
)  # fmt: skip
CHUNK = 100
DEEP = "a text that stands for lists in lists"  # which Python itself could not write
KEYS = ("checkpoint_path", "pretrained", "domains", "extra", "depth", "classes", "weights", "history")


def attack(stage: Stage, count: int, seed: int) -> Iterator[Row]:
    """Two rows: mutated and forged files."""
    mutants = Row("mutated files: refused, or loaded to the same bits")
    forgeries = Row("forged files: refused or loaded, no crash")
    rng, folder = random.Random(seed), stage.root / "mutants"
    folder.mkdir(exist_ok=True)
    files = {"model": stage.model, "adapter": stage.adapter, "stats": stage.stats}
    whole = {kind: file.read_bytes() for kind, file in files.items()}
    load = {kind: _loader(stage, kind) for kind in files}
    expected = {kind: load[kind](file) for kind, file in files.items()}
    for first in range(0, count, CHUNK):
        cases = []
        for number in range(first, min(first + CHUNK, count)):
            kind, forge = rng.choice(sorted(files)), rng.random() < 0.3
            place = folder / f"{number}.safetensors"
            if forge:
                how = "forged"
                _forge(files[kind], place, rng)
            else:
                how, data = _mutant(whole[kind], rng)
                place.write_bytes(data)
            cases.append((number, kind, how, partial(_equal, load[kind], place, expected[kind])))
        for (number, kind, how, _), outcome in zip(cases, _outcomes([case[3] for case in cases]), strict=True):
            problem = None if outcome.clean else f"{outcome.kind}: {outcome.value}"
            if outcome.value is False and how != "forged":
                problem = "loaded different"
            row = forgeries if how == "forged" else mutants
            row.add(problem and f"case {number}, {kind}, {how}: {problem}", outcome.kind)
            (folder / f"{number}.safetensors").unlink()
    yield from (mutants, forgeries)


def _loader(stage: Stage, kind: str) -> Any:
    from dept.models.files import load_adapter, load_model
    from dept.models.stats import load_stats

    model = load_model(stage.model)

    def read(file: Path) -> tuple[dict[str, torch.Tensor], str]:
        if kind == "model":
            loaded = load_model(file)
            return loaded.state_dict(), repr(loaded.card)
        if kind == "adapter":
            adapter = load_adapter(file, model)
            return dict(adapter.tensors), json.dumps(adapter.meta, sort_keys=True)
        return load_stats(file, model), ""

    return read


def _equal(load: Any, file: Path, expected: tuple[dict[str, torch.Tensor], str]) -> bool:
    tensors, rest = load(file)
    return rest == expected[1] and same(tensors, expected[0])


def _outcomes(loads: list[Callable[[], bool]]) -> list[Outcome]:
    """All loads in one process, which is cheap; one by one if one of them kills it or takes too long."""
    together = forked(lambda: [ended(load) for load in loads], 30 + 0.5 * len(loads), MEMORY)
    return together.value if together.kind == "value" else [forked(load, 30, MEMORY) for load in loads]


def _mutant(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """The name of a mutation, and the file after it."""
    size = 8 + int.from_bytes(data[:8], "little")
    way = rng.choice(("tensor bit", "tensor bit", "header bit", "length", "cut", "longer", "field", "field", "tensor"))
    changed = bytearray(data)
    if way == "tensor bit":
        changed[rng.randrange(size, len(data))] ^= 1 << rng.randrange(8)
    elif way == "header bit":
        changed[rng.randrange(8, size)] ^= 1 << rng.randrange(8)
    elif way == "length":
        changed[rng.randrange(8)] ^= 1 << rng.randrange(8)
    elif way == "cut":
        del changed[rng.randrange(len(data)) :]
    elif way == "longer":
        changed += rng.randbytes(rng.randrange(1, 100))
    else:
        header = json.loads(data[8:size])
        if way == "field":
            meta = json.loads(header["__metadata__"]["dept"])
            _change(meta, rng)
            header["__metadata__"]["dept"] = json.dumps(meta).replace(f'"{DEEP}"', "[" * 2000 + "]" * 2000)
        else:
            _change(header, rng)
        text = json.dumps(header).encode()
        changed = bytearray(len(text).to_bytes(8, "little") + text + data[size:])
    return way, bytes(changed)


def _change(value: Any, rng: random.Random) -> None:
    """Change, remove or add one entry anywhere in a JSON value."""
    container, key = rng.choice(list(_spots(value)))
    way = rng.random()
    if way < 0.2:
        del container[key]
    elif way < 0.35 and isinstance(container, dict):
        container[rng.choice(KEYS)] = rng.choice(ODD)
    elif way < 0.38:
        container[key] = DEEP
    else:
        container[key] = rng.choice(ODD)


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _spots(value[key])


def _forge(file: Path, place: Path, rng: random.Random) -> None:
    """The file with other metadata or tensors and a digest that is right: no accident, somebody's work."""
    from dept.io import FORMAT, checksum, read_meta

    tensors, meta = tensors_of(file), read_meta(file)
    if rng.random() < 0.7:
        _change(meta, rng)
    else:
        name = rng.choice(sorted(tensors))
        tensor = tensors[name]
        way = rng.choice(("nan", "shape", "type", "gone", "more"))
        changed = {
            "nan": torch.full_like(tensor, float("nan")),
            "shape": tensor.reshape(-1)[: rng.randrange(1, tensor.numel() + 1)].clone(),
            "type": tensor.to(torch.int8),
        }
        tensors |= {name: changed[way]} if way in changed else {f"{name}.more": tensor} if way == "more" else {}
        if way == "gone":
            del tensors[name]
    meta = {**meta, "format": FORMAT}
    apart = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(apart, place, metadata={"dept": json.dumps(meta | {"sha256": checksum(apart, meta)})})

"""What the guard saves, and what it costs: `python benchmarks/guard_streams.py` prints the tables of docs/guard.md.

Streams of digits, hostile ones too, with and without the guard, from the source model in the package. `--play` first
plays those that `results/guard/streams.json` does not hold yet (an hour for all of them, on one core). The guard's
thresholds were set while looking at corrupted rendered digits (snow, elastic transform, glass blur, motion blur and
impulse noise). The real digits and the two corruptions here were played afterwards. Windows of 32 for DePT,
faster windows and rarer looks were chosen later, on snow and impulse noise. `--time` measures what the guard adds to an
update.

Online accuracy is that of the predictions as they were made. Held-out accuracy is that of the model at the end of the
stream, on images that the stream did not have.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dept.bench.suites.digits import EMBEDDED
from dept.data.corruptions import corrupt
from dept.data.digits import real_digits, rendered_digits
from dept.data.images import ImageSet
from dept.data.loader import normalised, stacked
from dept.data.streams import Order, arranged
from dept.health.guard import CONFIDENT, EVERY, QUIET, RAREST, effective_classes
from dept.models.files import load_model
from dept.runs.stream import Stream, open_stream

STORED = Path(__file__).parent / "results" / "guard" / "streams.json"
TIMES = STORED.with_name("overhead.json")
POOL, HELD_OUT = 900, 897
"""images of a domain that streams draw from, and others to score on: the 1,797 real digits, in two"""
REAL = "real digits"
OTHERS = ("gaussian_blur/3", "shot_noise/5")
SETTINGS: dict[str, dict[str, Any]] = {
    "dept": {"method": "dept"},
    "dept, lr 0.1": {"method": "dept", "lr": 0.1},
    "dept+": {"method": "dept+"},
    "tent": {"method": "tent"},
}

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Digits = tuple[Pixels, Labels]


@cache
def digits(domain: str) -> tuple[Digits, Digits]:
    """Images and labels of a domain: what streams draw from, and what is held out."""
    if domain == REAL:
        images, labels = real_digits()
        order = np.random.default_rng(0).permutation(len(images))
        images, labels = images[order], labels[order]
    else:
        images, labels = rendered_digits(POOL + HELD_OUT, seed=11)
    if "/" in domain:
        name, severity = domain.split("/")
        corrupted = [corrupt(image, name, int(severity), seed=seed) for seed, image in enumerate(images)]
        images = np.stack(corrupted)[..., 0]
    return (images[:POOL], labels[:POOL]), (images[POOL:], labels[POOL:])


def drawn(domain: str, count: int, keep: Callable[[Labels], NDArray[np.bool_]] | None = None) -> Digits:
    """`count` images in random order, pass after pass through those that are kept."""
    images, labels = digits(domain)[0]
    rows = np.flatnonzero(np.ones(len(labels), bool) if keep is None else keep(labels))
    rng = np.random.default_rng(1)
    passes = [rng.permutation(rows) for _ in range(-(-count // len(rows)))]
    order = np.concatenate(passes)[:count]
    return images[order], labels[order]


def by_class(domain: str, count: int, order: Order) -> Digits:
    """Images arranged by their classes: sorted, or in bursts."""
    images, labels = drawn(domain, count)
    listed = ImageSet(Path(), tuple(Path(str(n)) for n in range(count)), tuple(labels.tolist()))
    rows = np.array(arranged(listed, order, seed=2))
    return images[rows], labels[rows]


def alternating(domain: str, count: int, batch: int = 64) -> Digits:
    """A batch of the domain, a batch of what the source model was trained on, and so on."""
    parts = [drawn(name, count // 2) for name in (domain, "rendered")]
    starts = range(0, count // 2, batch)
    images, labels = (
        np.concatenate([part[kind][at : at + batch] for at in starts for part in parts]) for kind in (0, 1)
    )
    return images, labels


def unlabelled(images: Pixels) -> Digits:
    """Images that show no digit: every prediction is wrong."""
    return images, np.full(len(images), -1)


def noise(count: int) -> Pixels:
    return np.random.default_rng(3).integers(0, 256, (count, 32, 32), dtype=np.uint8)


STREAMS: dict[str, tuple[Callable[[str], Digits], int | None]] = {
    "iid": (lambda domain: drawn(domain, 6400), None),
    "iid, batch 8": (lambda domain: drawn(domain, 3200), 8),
    "iid, batch 1": (lambda domain: drawn(domain, 640), 1),
    "class-sorted": (lambda domain: by_class(domain, 1280, "sorted"), None),
    "Dirichlet 0.1": (lambda domain: by_class(domain, 1280, "dirichlet"), None),
    "single class, 3": (lambda domain: drawn(domain, 960, lambda y: y == 3), None),
    "single class, 7": (lambda domain: drawn(domain, 960, lambda y: y == 7), None),
    "three classes": (lambda domain: drawn(domain, 1280, lambda y: y % 3 == 1), None),
    "noise": (lambda _: unlabelled(noise(960)), None),
    "blank": (lambda _: unlabelled(np.zeros((960, 32, 32), np.uint8)), None),
    "one image": (lambda domain: unlabelled(np.repeat(digits(domain)[0][0][:1], 960, axis=0)), None),
    "alternating domains": (lambda domain: alternating(domain, 2560), None),
}
"""(images of a domain in order, the batch if it is not the method's own)"""
SPANS = {"first": range(EVERY, 9 * EVERY), "quiet": range(RAREST * QUIET, RAREST * QUIET + 4 * RAREST)}
"""updates that are timed. The first ones warm up, and a small first batch is only looked at"""
LONG = "20,000 updates"
ENDLESS = {LONG: (lambda domain: drawn(domain, 160_000), 8)}
"""with the guard only: without it, 2,000 updates at a rate of 0.1 are enough to lose everything"""


@dataclass(frozen=True)
class Played:
    """What a stream came to; accuracies and shares are fractions, online None without labels."""

    online: float | None
    held_out: float
    updates: int
    paused: int
    alarms: int
    contradicted: float
    """of the quarter of held-out images that the source model is most confident of"""
    effective: float
    """classes predicted on held-out images"""


def logits(stream: Stream, images: Pixels) -> Tensor:
    """(n, C) of the model as it is."""
    made = stacked([stream.prepare(image, 0).views for image in images])[0]
    return stream.method.predict(normalised(made, stream.views.preprocess))


@cache
def source_logits(domain: str) -> Tensor:
    """Of the source model on the held-out images."""
    return logits(open_stream(load_model(EMBEDDED), device="cpu", method="source"), digits(domain)[1][0])


def play(domain: str, images: Pixels, labels: Labels, *, guard: bool, **settings: Any) -> Played:
    """One stream from its first image to its last."""
    stream = open_stream(load_model(EMBEDDED), device="cpu", guard=guard, **settings)
    batch, correct = stream.method.config.batch, 0
    for at in range(0, len(images), batch):
        reply = stream.feed(list(images[at : at + batch]), last=at + batch >= len(images))
        correct += int((reply.logits.argmax(dim=-1).numpy() == labels[at : at + batch]).sum())
    online = correct / len(labels) if labels[0] >= 0 else None
    others, truth = digits(domain)[1]
    own, source = logits(stream, others).argmax(dim=-1), source_logits(domain)
    confidence, before = source.softmax(dim=-1).max(dim=-1)
    sure = confidence >= confidence.quantile(CONFIDENT)
    did = stream.guard.record() if stream.guard else {}
    return Played(
        online=online,
        held_out=float((own.numpy() == truth).mean()),
        updates=did.get("updates", stream.steps),
        paused=did.get("not_learned_from", 0),
        alarms=did.get("alarms", 0),
        contradicted=float((own != before)[sure].double().mean()),
        effective=effective_classes(own, source.shape[1]),
    )


def rows() -> Iterator[tuple[str, str, str]]:
    """Domain, setting and stream of every row of the tables."""
    for setting in SETTINGS:
        yield from ((REAL, setting, stream) for stream in STREAMS)
        yield from ((domain, setting, stream) for domain in OTHERS for stream in ("iid", "class-sorted"))


def wanted() -> Iterator[tuple[str, str, str, str]]:
    """Domain, setting, stream and kind (source, free or guarded) of everything that the tables show."""
    yield from ((*row, kind) for row in rows() for kind in ("source", "free", "guarded"))
    yield from ((REAL, setting, LONG, "guarded") for setting in ("dept+", "dept"))


def play_missing() -> None:
    """Play what is not stored yet, and store it stream by stream."""
    STORED.parent.mkdir(exist_ok=True)
    for domain, setting, stream, kind in wanted():
        stored, name = read(), title(domain, setting, stream, kind)
        if name in stored:
            continue
        make, batch = (STREAMS | ENDLESS)[stream]
        settings = {"method": "source"} if kind == "source" else dict(SETTINGS[setting])
        settings |= {"batch": batch} if batch else {}
        stored[name] = asdict(play(domain, *make(domain), guard=kind == "guarded", **settings))
        STORED.write_text(json.dumps(stored, indent=1) + "\n")


def overhead(setting: str, spans: Mapping[str, range] = SPANS) -> dict[str, float]:
    """What the guard adds to an update, as a share of it: spans of two streams of real digits, taken in turns."""
    free, guarded = (open_stream(load_model(EMBEDDED), device="cpu", guard=on, **SETTINGS[setting]) for on in (0, 1))
    size, last = free.method.config.batch, max(span.stop for span in spans.values())
    images, _ = drawn(REAL, last * size)
    spent = {stream: [0.0] * last for stream in (free, guarded)}
    for number in range(last):
        for stream in (free, guarded):
            ready = [stream.prepare(image) for image in images[number * size : (number + 1) * size]]
            start = time.process_time()
            stream.feed(ready)
            spent[stream][number] = time.process_time() - start
    sums = {name: [sum(spent[one][span.start : span.stop]) for one in (free, guarded)] for name, span in spans.items()}
    return {name: seconds[1] / seconds[0] - 1 for name, seconds in sums.items()}


def measure_times() -> None:
    """Store the overhead of every method at its default rate."""
    TIMES.write_text(json.dumps({name: overhead(name) for name in ("dept", "dept+", "tent")}, indent=1) + "\n")


def title(domain: str, setting: str, stream: str, kind: str) -> str:
    """Under which a stream is stored; the source model has no settings."""
    return f"{domain} | {'source' if kind == 'source' else setting} | {stream} | {kind}"


def read() -> dict[str, Any]:
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def played(domain: str, setting: str, stream: str, kind: str) -> Played:
    """A stream as it is stored."""
    return Played(**read()[title(domain, setting, stream, kind)])


def cell(one: Played) -> str:
    """Online / held-out accuracy."""
    online = "–" if one.online is None else f"{100 * one.online:.1f}"
    return f"{online} / {100 * one.held_out:.1f}"


def line(domain: str, setting: str, stream: str) -> str:
    """A row of a table."""
    source, free, guarded = (played(domain, setting, stream, kind) for kind in ("source", "free", "guarded"))
    did = f"{guarded.updates} / {guarded.paused} / {guarded.alarms}"
    return f"| {titled(domain, stream)} | {cell(source)} | {cell(free)} | {cell(guarded)} | {did} |"


def endless(setting: str) -> str:
    """A row of the table of long streams; the source model does not change, so a pass over the images tells all."""
    source, guarded = played(REAL, setting, "iid", "source"), played(REAL, setting, LONG, "guarded")
    did = f"{guarded.updates} / {guarded.paused} / {guarded.alarms}"
    return f"| {setting} | {cell(source)} | {cell(guarded)} | {did} |"


def titled(domain: str, stream: str) -> str:
    """A stream as the tables call it; real digits are not named."""
    return stream if domain == REAL else f"{stream}, {domain.replace('_', ' ').replace('/', ' ')}"


def signals(most: int = 12) -> Iterator[str]:
    """The unguarded streams that changed the held-out accuracy most, and what could be seen of it without labels."""
    found = [(row, played(*row, "source"), played(*row, "free")) for row in rows()]
    found.sort(key=lambda one: one[2].held_out - one[1].held_out)
    for (domain, setting, stream), source, free in [*found[:most], *found[-most:]]:
        yield (
            f"| {setting}: {titled(domain, stream)} | {100 * (free.held_out - source.held_out):+.1f} | "
            f"{100 * free.contradicted:.0f} % | {source.effective:.1f} → {free.effective:.1f} |"
        )


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--play", action="store_true", help="play the streams that are not stored yet")
    parser.add_argument("--time", action="store_true", help="measure what the guard adds to an update")
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    if asked.play:
        play_missing()
    if asked.time:
        measure_times()
    for setting in SETTINGS:
        print(f"**{setting}**\n")
        print("| stream | source | unguarded | guarded | learned from / not / alarms |\n|---|---:|---:|---:|---:|")
        for domain, own, stream in rows():
            if own == setting:
                print(line(domain, setting, stream))
        print()
    long = [setting for setting in SETTINGS if title(REAL, setting, LONG, "guarded") in read()]
    if long:
        print("**20,000 batches of 8 images, real digits** (DePT gathers four of them for an update)\n")
        print("| method | source | guarded | learned from / not / alarms |\n|---|---:|---:|---:|")
        print("\n".join(map(endless, long)), end="\n\n")
    print("**Time that the guard adds to an update**\n")
    print("| method | first 32 updates | after 128 quiet ones |\n|---|---:|---:|")
    for name, share in json.loads(TIMES.read_text()).items():
        print(f"| {name} | {100 * share['first']:.1f} % | {100 * share['quiet']:.1f} % |")
    print("\n**What could be seen of the unguarded ones**\n")
    print("| stream | held-out accuracy | confident source contradicted | effective classes |\n|---|---:|---:|---:|")
    print("\n".join(signals()))


if __name__ == "__main__":
    main(sys.argv[1:])

"""The pool: versions, the way back, pins, two processes on one folder, and files that do not fit."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import torch
from serve_support import until, write_adapter

from dept.core.adapter import Adapter
from dept.errors import DataError, UsageError
from dept.models.files import read_model, save_adapter
from dept.serve.index import Index
from dept.serve.pool import SOURCE, Conflict, NotFound, Pool
from dept.serve.routing import ENOUGH


def pool(model_file: Path, folder: Path, **settings: int) -> Pool:
    model, sha = read_model(model_file)
    return Pool(model, sha, folder, **settings)


def test_files_of_the_folder_are_adopted_once(model_file: Path, pool_folder: Path) -> None:
    run = pool_folder / "site"
    run.mkdir()
    shutil.copy(pool_folder / "a.safetensors", run / "adapter.safetensors")
    first = pool(model_file, pool_folder)
    assert [version.domain for version in first.adopt()[0]] == ["a", "b", "norms", "site"]
    assert [first.get(name).version for name in first.names()] == [1, 1, 1, 1]
    again = pool(model_file, pool_folder)
    assert again.adopt() == ([], {}) and again.names() == first.names()
    write_adapter(model_file, pool_folder / "a.safetensors", seed=9)  # replaced while no server ran
    assert [(one.domain, one.number) for one in pool(model_file, pool_folder).adopt()[0]] == [("a", 2)]


def test_a_version_is_added_activated_and_rolled_back(model_file: Path, adapters: Path, tmp_path: Path) -> None:
    served = pool(model_file, tmp_path)
    for name in ("a", "b"):
        served.add("site", adapters / f"{name}.safetensors", "alice")
    assert served.get("site").version == 0 and not served.get("site").tensors
    served.activate("site", 1, "alice")
    before = served.get("site")
    served.activate("site", 2, "bob")
    assert served.get("site").version == 2 and before.version == 1  # who holds the old entry goes on with it
    assert served.rollback("site", "bob") == 1
    assert torch.equal(served.get("site").tensors["prompts"], before.tensors["prompts"])
    assert served.rollback("site", "bob") == 0 and served.get("site").lane == served.source.lane
    with pytest.raises(Conflict, match="nothing to roll back"):
        served.rollback("site", "bob")
    done = [(one.made_by, one.action, one.version) for one in served.index.history("site")]
    assert done[:4] == [
        ("bob", "rollback", 0),
        ("bob", "rollback", 1),
        ("bob", "activate", 2),
        ("alice", "activate", 1),
    ]


def test_a_pinned_domain_stays(model_file: Path, adapters: Path, tmp_path: Path) -> None:
    served = pool(model_file, tmp_path)
    version = served.add("site", adapters / "a.safetensors", "alice")
    served.pin("site", True, "alice")
    for change in (lambda: served.activate("site", version.number, "bob"), lambda: served.rollback("site", "bob")):
        with pytest.raises(Conflict, match="pinned"):
            change()
    served.pin("site", False, "alice")
    served.activate("site", version.number, "bob")
    assert served.get("site").version == 1


def test_a_harmful_version_must_be_forced(model_file: Path, adapters: Path, tmp_path: Path) -> None:
    served = pool(model_file, tmp_path)
    served.add("site", adapters / "a.safetensors", "alice", verdict={"verdict": "harmful"})
    with pytest.raises(Conflict, match="harmful"):
        served.activate("site", 1, "alice")
    served.activate("site", 1, "alice", force=True)
    assert served.get("site").version == 1


def test_a_change_by_one_process_is_seen_by_the_other(model_file: Path, adapters: Path, tmp_path: Path) -> None:
    one, two = pool(model_file, tmp_path), pool(model_file, tmp_path)
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(0.5):  # the interval of a server
            two.sync()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        one.add("site", adapters / "a.safetensors", "alice")
        one.activate("site", 1, "alice")
        until(lambda: "site" in two.names() and two.get("site").version == 1, seconds=2)
        one.rollback("site", "alice")
        until(lambda: two.get("site").version == 0, seconds=2)
    finally:
        stop.set()
        thread.join()
    assert not two.sync()  # nothing new, nothing read


def test_a_damaged_version_does_not_replace_the_last_good_one(model_file: Path, adapters: Path, tmp_path: Path) -> None:
    one, two = pool(model_file, tmp_path), pool(model_file, tmp_path)
    for name in ("a", "b"):
        one.add("site", adapters / f"{name}.safetensors", "alice")
    one.activate("site", 1, "alice")
    two.sync()
    with one.index.changing() as change:
        change.activate("site", 2)
    file = one.file("site", 2)
    file.write_bytes(file.read_bytes()[:-50])
    two.sync()
    assert two.get("site").version == 1 and "site" in two.problems
    with pytest.raises(DataError):
        one.activate("site", 1, "alice") or one.activate("site", 2, "alice")


def test_old_versions_are_dropped_but_not_the_active_one(model_file: Path, adapters: Path, tmp_path: Path) -> None:
    served = pool(model_file, tmp_path, keep=2)
    served.add("site", adapters / "a.safetensors", "alice")
    served.activate("site", 1, "alice")
    for _ in range(4):
        served.add("site", adapters / "b.safetensors", "alice")
    assert [version.number for version in served.index.versions("site")] == [5, 4, 1]
    assert sorted(file.name for file in served.file("site", 1).parent.iterdir()) == [
        f"{number:06}.safetensors" for number in (1, 4, 5)
    ]
    served.add("site", adapters / "b.safetensors", "alice")
    assert served.index.versions("site")[0].number == 6  # numbers are not used again


@pytest.mark.parametrize("name", ["", "source", "../up", "a/b", ".hidden", "x" * 65, "a b", "naïve", "a\n"])
def test_names_that_could_be_paths_are_refused(model_file: Path, adapters: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        pool(model_file, tmp_path).add(name, adapters / "a.safetensors", "alice")
    assert not (tmp_path.parent / "up").exists()


def altered(model_file: Path, file: Path, **tensors: torch.Tensor) -> Path:
    """An adapter file with other tensors than its model has."""
    write_adapter(model_file, file)
    model, sha = read_model(model_file)
    meta = Pool(model, sha, file.parent / "other").read(file).meta
    meta.pop("rest_sha256")
    return save_adapter(Adapter(tensors, meta), file)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"nonsense": torch.zeros(3)}, "nonsense"),
        ({"head.weight": torch.zeros(2, 32)}, "head.weight"),
        ({"head.weight": torch.zeros(3, 32, dtype=torch.float64)}, "float64"),
        ({"prompts": torch.zeros(3, 4, 32)}, "divides 4"),
        ({"prompts": torch.zeros(2, 4, 16)}, "width"),
        ({"prompts": torch.zeros(2, 5000, 32)}, "1 to 1000"),
        ({"projections.0.weight": torch.zeros(3)}, "training only"),
        ({}, "no tensors"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(
    model_file: Path, tmp_path: Path, tensors: dict[str, torch.Tensor], message: str
) -> None:
    file = altered(model_file, tmp_path / "bad.safetensors", **tensors)
    served = pool(model_file, tmp_path / "pool")
    with pytest.raises(DataError, match=message):
        served.add("site", file, "mallory")
    assert served.names() == [] and served.index.versions() == []
    assert not list((tmp_path / "pool" / "versions").rglob("*.*"))


def test_an_unknown_domain_is_not_found(model_file: Path, tmp_path: Path) -> None:
    served = pool(model_file, tmp_path)
    assert served.get(SOURCE) is served.source
    with pytest.raises(NotFound):
        served.get("nowhere")


def test_signatures_reach_the_router_of_every_process(model_file: Path, adapters: Path, tmp_path: Path) -> None:
    one, two = pool(model_file, tmp_path), pool(model_file, tmp_path)
    one.add("site", adapters / "a.safetensors", "alice")
    one.set_signature("site", torch.randn(ENOUGH, 32))
    two.sync()
    assert one.router.names == two.router.names == ["site"] and two.references["site"].count == ENOUGH


def test_an_index_of_another_schema_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "index.sqlite3"
    index = Index(file)
    with index._writing() as db:
        db.execute("UPDATE revision SET schema = 99")
    with pytest.raises(DataError, match="schema 99"):
        Index(file)
    (tmp_path / "broken.sqlite3").write_bytes(b"not a database" * 100)
    with pytest.raises(DataError, match="cannot be used"):
        Index(tmp_path / "broken.sqlite3")

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dept.bench.protocol import MISSING, check_preprocess, differences, flat
from dept.bench.verify import compare, find_result
from dept.cli import bench_diff
from dept.data.views import Preprocess
from dept.errors import DataError, UsageError
from stored import read, small_suite, stored

VIT = "vit_base_patch16_224.augreg_in21k_ft_in1k"
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
SUITE = small_suite()


def write(root: Path, key: str, entry: object) -> Path:
    file = root / "small" / key / "result.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(entry))
    return file


def test_flat_and_differences() -> None:
    assert flat({"a": {"b": 1, "c": {}}, "d": [1, 2]}) == {"a.b": 1, "a.c": {}, "d": [1, 2]}
    found = differences({"a": {"b": 1}, "c": (1, 2), "d": 1}, {"a": {"b": 2}, "c": [1, 2], "e": 3})
    assert found == [("a.b", 1, 2), ("d", 1, MISSING), ("e", MISSING, 3)]


def test_the_models_own_preprocessing_passes() -> None:
    assert check_preprocess(VIT, Preprocess(), force=False) == []
    assert check_preprocess(VIT, Preprocess(size=128, resize=146), force=False) == []
    assert check_preprocess(VIT, Preprocess(mean=(0.5,), std=(0.5,)), force=False) == []
    assert check_preprocess("resnet101.tv_in1k", Preprocess(**IMAGENET), force=False) == []
    assert check_preprocess("no_such_network", Preprocess(**IMAGENET), force=False) == []


def test_a_foreign_normalisation_is_refused_unless_forced() -> None:
    foreign = Preprocess(**IMAGENET)
    with pytest.raises(UsageError, match=r"mean \(0.485, 0.456, 0.406\) instead of \(0.5, 0.5, 0.5\)"):
        check_preprocess(VIT, foreign, force=False)
    marks = check_preprocess(VIT, foreign, force=True)
    assert [mark.split()[:2] for mark in marks] == [["forced:", "mean"], ["forced:", "std"]]
    with pytest.raises(UsageError, match="too small for a crop"):
        check_preprocess(VIT, replace(Preprocess(), resize=200), force=False)


def test_results_are_found_by_file_folder_and_beginning_of_the_key(tmp_path: Path) -> None:
    file = write(tmp_path, "abc123", stored(SUITE, "DePT-G", 0.7))
    write(tmp_path, "abd456", stored(SUITE, "DePT-G", 0.8))
    for name in (str(file), str(file.parent), "abc"):
        assert find_result(name, tmp_path).file == file
    with pytest.raises(UsageError, match="beginning of 2 keys"):
        find_result("ab", tmp_path)
    with pytest.raises(DataError, match="neither"):
        find_result("zz", tmp_path)
    file.write_text("{}")
    with pytest.raises(DataError, match="no protocol"):
        find_result(str(file), tmp_path)


def test_compare_sees_everything() -> None:
    a = read(stored(SUITE, "DePT-G", 0.7))
    same = compare(a.result, a.result, (a.cell, a.cell))
    assert same.equal and same.predictions == "all 2 predictions are equal"
    b = read(stored(SUITE, "DePT-G", 0.8, seed=1, images=5, environment={"torch": "3"}))
    found = compare(a.result, b.result, (a.cell, b.cell))
    assert [path for path, _, _ in found.protocol] == ["cell.seed", "images", "seed"]
    assert [path for path, _, _ in compare(a.result, b.result, (a.cell, None)).protocol] == ["images", "seed"]
    assert found.environment == (("torch", "2.9", "3"),)
    assert ("after.top1", 0.7, 0.8) in found.outcome and found.predictions == "1 of 2 predictions differ"


def test_diff_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "abc123", stored(SUITE, "DePT-G", 0.7))
    write(tmp_path, "abd456", stored(SUITE, "DePT-G", 0.8, images=5))
    bench_diff.run(["abc", "abd", "--results", str(tmp_path)])
    text = capsys.readouterr().out
    assert "images" in text and "environment: no difference" in text and "predictions differ" in text
    bench_diff.run(["abc", "abc", "--results", str(tmp_path), "--json"])
    assert json.loads(capsys.readouterr().out)["equal"] is True

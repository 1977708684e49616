from __future__ import annotations

import runpy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dept import methods
from dept.bench import suites
from dept.bench.estimate import forward, gpu_hours, image_count
from dept.bench.learning_rates import best, published_lr, scaled_lr
from dept.bench.paper import paper_number, paper_rows
from dept.bench.stored import stored_cells, trainings
from dept.bench.suite import Row, Source, Suite
from dept.data import datasets
from dept.methods.full import Full
from dept.runs.job import make_config
from dept.runs.train import SourceTraining

NAMES = suites.available()
FOR_A_GPU = (
    "visda", "visda-r101", "imagenet-c", "domainnet", "domainnet-r50", "domainnet-multi", "data-ratio",
    "prompt-number", "loss-ablation", "hyper-parameters", "motivation", "pacs", "office-home",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_unique_and_findable(name: str) -> None:
    suite = suites.get(name)
    assert suite.name == name and suite.title
    assert not [row for row, count in Counter((row.method, row.name) for row in suite.rows).items() if count > 1]
    assert not [label for label, count in Counter(row.label for row in suite.rows).items() if count > 1]
    cells = suite.cells("weights")
    assert len({cell.key for cell in cells}) == len(cells)
    assert {row.source for row in suite.rows} == set(suite.sources)


@pytest.mark.parametrize("name", NAMES)
def test_configs_and_presets_are_accepted(name: str) -> None:
    suite = suites.get(name)
    for source in suite.sources.values():
        if source.config is not None:
            SourceTraining.Config(**source.config)
    for row in suite.rows:
        assert row.setting in ("offline", "online", "uda", "ensemble")
        if row.method == "source":
            continue  # rows share a config of which Source has no use
        kind = methods.get(row.method)
        make_config(kind, None, row.preset, dict(row.config))


@pytest.mark.parametrize("name", NAMES)
def test_paper_rows_exist_and_have_a_number(name: str) -> None:
    suite = suites.get(name)
    for row in suite.rows:
        if row.paper:
            assert row.paper in paper_rows(suite.paper)
            assert paper_number(suite.paper, row.paper, "mean") is not None


def test_every_row_of_the_main_tables_is_put_beside_ours() -> None:
    linked = {row.paper for name in ("visda", "visda-r101") for row in suites.get(name).rows}
    assert set(paper_rows("visda")) <= linked
    assert set(paper_rows("imagenet-c")) <= {row.paper for row in suites.get("imagenet-c").rows}
    shifted = {row.paper for name in ("domainnet", "domainnet-r50") for row in suites.get(name).rows}
    assert set(paper_rows("domainnet")) <= shifted
    assert set(paper_rows("prompt-number")) == {row.paper for row in suites.get("prompt-number").rows}


@pytest.mark.parametrize("name", ["pacs", "office-home"])
def test_twelve_shifts_between_the_official_domains(name: str) -> None:
    suite = suites.get(name)
    official = {domain.name for domain in datasets.get(suite.data).domains}
    assert (
        len(set(suite.shifts)) == 12
        and {d for shift in suite.shifts for d in (*shift.sources, *shift.targets)} == official
    )
    assert not [row.label for row in suite.rows if row.paper]


@pytest.mark.parametrize("name", NAMES)
def test_hours_are_estimated(name: str) -> None:
    hours = gpu_hours(suites.get(name))
    assert 0 < hours < 1000
    assert (hours > 1) == (name in FOR_A_GPU)


def test_forwards_are_those_of_the_architecture() -> None:
    vit = "vit_base_patch16_224.augreg_in21k_ft_in1k"
    assert forward(Source(vit)) == pytest.approx(17.5e9, rel=0.03)
    assert forward(Source(vit, 4, 50)) > forward(Source(vit))
    assert forward(Source("resnet101.tv_in1k", size=112)) == pytest.approx(7.8e9 / 4)
    assert image_count("domainnet-126", ("real", "clipart")) == 69_622 + 18_523


def test_source_models_per_seed_are_counted() -> None:
    suite = suites.get("domainnet-r50")
    trained = {(str(cell.shift), cell.seed) for cell in suite.cells("w") if cell.method == "source-training"}
    assert trained == {(domain, seed) for domain in ("real", "painting", "clipart", "sketch") for seed in suite.seeds}
    once = replace(suite, sources={"source": replace(suite.sources["source"], per_seed=False)})
    by_seed, by_all = (gpu_hours(replace(one, rows=suite.rows[1:])) for one in (suite, once))
    assert by_seed - by_all == pytest.approx(2 / 3 * (by_seed - gpu_hours(_untrained(suite))))


def _untrained(suite: Suite) -> Suite:
    """The suite's adaptations alone."""
    return replace(suite, rows=suite.rows[1:], sources={"source": replace(suite.sources["source"], config=None)})


def test_ablations_borrow_the_source_models_of_the_main_table() -> None:
    main = {cell.key for cell in suites.get("visda").cells("w") if cell.method == "source-training"}
    for name in ("data-ratio", "loss-ablation", "hyper-parameters", "motivation"):
        made = {cell.key for cell in suites.get(name).cells("w") if cell.method == "source-training"}
        assert made <= main


@pytest.mark.parametrize(
    "name", ["visda", "visda-r101", "imagenet-c", "domainnet", "domainnet-r50", "domainnet-multi", "prompt-number"]
)
def test_the_tables_of_the_paper_start_from_source_models_of_the_released_recipe(name: str) -> None:
    official = SourceTraining.presets["official"]
    configs = [source.config for source in suites.get(name).sources.values() if source.config is not None]
    assert configs and all(config.items() >= official.items() for config in configs)


def test_weak_views_of_images_that_are_used_as_they_are() -> None:
    """The recipe's random crop in the table of the paper; what was committed in miniature stays without."""
    for name, expected in (("imagenet-c", {256}), ("imagenet-c-mini", {None}), ("imagenet-c-select", {None})):
        assert {source.extra.get("weak_resize") for source in suites.get(name).sources.values()} == expected


def test_committed_cells_of_pacs_mini_have_the_keys_of_the_suite() -> None:
    finished = stored_cells(Path("benchmarks/results/pacs-mini"))
    (weights,) = {protocol["weights_sha256"] for protocol in trainings(finished).values()}
    defined = {cell.key for cell in suites.get("pacs-mini").cells(weights)}
    rows = {(row.method, row.name) for row in suites.get("pacs-mini").rows}
    for cell in (one.cell for one in finished):
        # The source model has nothing random in it: the suite defines its first seed only.
        if (cell.method, cell.setting) in rows and (cell.method, cell.seed) != ("source", 1):
            assert cell.key in defined, cell


def test_the_best_rate_wins_and_the_published_one_among_equals() -> None:
    assert best({0.2: 94.0, 1.0: 94.2, 5.0: 94.5}) == 5.0
    assert best({0.2: 94.0, 1.0: 94.0, 5.0: 93.0}) == 1.0
    assert best({0.2: 80.0, 1.0: 81.0, 5.0: 82.0}, lower=True) == 0.2


def test_every_searched_row_runs_at_the_rate_that_its_search_found() -> None:
    script, checked = runpy.run_path("benchmarks/learning_rates.py"), 0
    for select, mini in script["SEARCHES"].items():
        complete = {row.label: factor for row, _, factor in script["search"](select) if factor is not None}
        for row in mini.SUITE.rows:
            if row.label in complete:
                started = next(found for found in select.SEARCHED if found.label == row.label)
                assert published_lr(row) == pytest.approx(complete[row.label] * published_lr(started)), row.label
                checked += 1
    assert checked


def test_a_rate_moves_every_group_of_full() -> None:
    row = scaled_lr(Row("Full", "full", "G", config={"lr": 0.01}), 5.0)
    assert row.config == {"lr": 0.05, "backbone_lr": 5 * Full.Config().backbone_lr}
    released = scaled_lr(Row("Full", "full", "G", preset="official"), 5.0)
    assert released.config == {"lr": 5 * 5e-3, "backbone_lr": 0.0}  # one rate stays one rate

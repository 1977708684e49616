"""The load test in its shortest form: every phase runs, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import serve_load
import serve_table

from dept.models.files import save_model

SIZES = serve_load.Sizes(domains=4, clients=4, rounds=1, seconds=0.7, soak=100, resident=5, batch=8)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_the_load_test_loses_nothing(tmp_path: Path) -> None:
    model = serve_load.make_model(SIZES, None, tiny=True)
    file = save_model(model, tmp_path / "model.safetensors")
    folder, images = tmp_path / "adapters", tuple(serve_load.make_images(4, 32))
    serve_load.write_adapters(model, folder, SIZES.domains)
    server = serve_load.Server(file, folder)
    try:
        found = serve_load.throughput(server, SIZES, images)
        swapped = serve_load.hot_swap(server, SIZES, images)
        soaked = serve_load.soak(server, SIZES.domains, SIZES, images)
    finally:
        server.stop()
    assert all(found[kind]["errors"] == {} and found[kind]["requests"] for kind in ("mixed", "one_domain"))
    assert swapped["errors"] == {} and swapped["swaps"] > 0
    assert soaked["errors"] == {} and soaked["requests"] == 100 and soaked["growth"] < 0.5
    rows = serve_table.throughput_rows({"throughput": found, "sizes": vars(SIZES), "arch": "tiny"})
    assert rows[2].startswith("| tiny ViT | 1 client |") and rows[2].endswith("| 0 |")
    drained = serve_load.drain(file, folder, SIZES, images)
    assert drained["requests"] == SIZES.clients and drained["errors"] == {}
    assert serve_load.resident(file, model, tmp_path, SIZES)["adapters"] == 5


def test_what_was_lost_is_shown() -> None:
    found = json.loads(Path("benchmarks/results/serve/load.json").read_text())
    rows = dict(serve_table.trials(found))
    assert len(rows) == 6 and all(" 0 of " in f" {lost}" or "1.01 ×" in lost for lost in rows.values())
    found["adversity"]["flood"]["errors"]["500"] = found["hot_swap"]["errors"]["connection"] = 3
    lost = list(dict(serve_table.trials(found)).values())
    asked, flooded = found["hot_swap"]["requests"], found["adversity"]["flood"]["requests"]
    assert lost[0] == f"3 of {asked} requests" and lost[2].startswith(f"3 of {flooded} requests")
    found["throughput"]["mixed"]["errors"]["500"] = found["throughput_bf16"]["one_domain"]["errors"]["500"] = 7
    rows = serve_table.table(found).splitlines()[2:8]
    assert [row.endswith("| 7 |") for row in rows] == [True, False, False, False, True, False]
    assert [row.split("|")[1].strip() for row in rows] == ["ViT-Ti/16"] * 3 + ["ViT-Ti/16, bf16"] * 3


def test_slow_and_broken_clients_and_a_flood_leave_others_unharmed(tmp_path: Path) -> None:
    model = serve_load.make_model(SIZES, None, tiny=True)
    file = save_model(model, tmp_path / "model.safetensors")
    serve_load.write_adapters(model, tmp_path / "adapters", 1)
    found = serve_load.adversity(file, tmp_path / "adapters", SIZES, tuple(serve_load.make_images(4, 32)))
    assert found["beside_slow_and_broken"]["errors"] == {} and found["beside_slow_and_broken"]["requests"]
    assert found["broken_uploads"].keys() <= {422} and found["flood"]["errors"].keys() <= {"429"}
    assert found["after_flood"]["errors"] == {} and found["after_flood"]["requests"]

"""The figures of `serve_load.py` as docs/serve.md shows them."""

from __future__ import annotations

from typing import Any

Found = dict[str, Any]
"""what a load test has written"""
TIMES = ("decode_ms", "queue_ms", "forward_ms")


def table(*found: Found) -> str:
    """Throughput in all of these tests, everything else in the first."""
    head = "| model | load | requests/s | p50 ms | p99 ms | HTTP ms | decode ms | queue ms | forward ms | errors |"
    lines = [head, "|---|---|" + "---:|" * 8, *(row for one in found for row in throughput_rows(one))]
    lines += ["", "| what happens | what is lost |", "|---|---|"]
    return "\n".join([*lines, *(f"| {what} | {lost} |" for what, lost in trials(found[0]))])


def throughput_rows(found: Found) -> list[str]:
    """In fp32, and in bf16 where that was measured."""
    model = "tiny ViT" if found["arch"] == "tiny" else "ViT-Ti/16"
    measured = {model: "throughput", f"{model}, bf16": "throughput_bf16"}
    return [
        row for name, kind in measured.items() if kind in found for row in load_rows(name, found["sizes"], found[kind])
    ]


def load_rows(model: str, sizes: Found, measured: Found) -> list[str]:
    """Medians of requests. HTTP is what decoding, queue and forward leave of them."""
    loads = {
        "mixed": f"{sizes['domains']} domains, {sizes['clients']} clients",
        "one_domain": f"1 domain, {sizes['clients']} clients",
        "one_at_a_time": "1 client",
    }
    lines = []
    for kind, load in loads.items():
        row = measured[kind]
        times = [row[f"median_{name}"] for name in TIMES]
        cells = [row["per_second"], row["p50_ms"], row["p99_ms"], row["p50_ms"] - sum(times), *times]
        shown = " | ".join(f"{cell:,.1f}" for cell in cells)
        lines.append(f"| {model} | {load} | {shown} | {sum(row['errors'].values())} |")
    return lines


def trials(found: Found) -> list[tuple[str, str]]:
    """What was done to the server, and what became of the requests."""
    clients, swap, hard = found["sizes"]["clients"], found["hot_swap"], found["adversity"]
    flood, soak, held = hard["flood"], found["soak"], found["resident"]
    broken, refused = sum(hard["broken_uploads"].values()), flood["errors"].get("429", 0)
    flooded = f"{lost(flood, refused)}; afterwards {lost(hard['after_flood'])}"
    size, ratio, growth = held["adapter_bytes"] / 1000, held["per_adapter_ratio"], 100 * soak["growth"]
    return [
        (f"{swap['swaps']:,} activations and rollbacks under load", lost(swap)),
        (f"8 clients that stall, {broken:,} broken uploads (422)", lost(hard["beside_slow_and_broken"])),
        (f"{8 * clients} clients on a queue of {4 * clients} images: {refused:,} times 429", flooded),
        (f"SIGTERM while {clients} requests wait", lost(found["drain"])),
        (f"{soak['requests']:,} requests on the tiny model", f"{lost(soak)}; memory grows by {growth:.2f} %"),
        (f"{held['adapters']} resident adapters of {size:,.0f} kB", f"memory grows by {ratio:.2f} × their size"),
    ]


def lost(row: Found, but: int = 0) -> str:
    """Requests that failed, without those that were meant to."""
    return f"{sum(row['errors'].values()) - but:,} of {row['requests']:,} requests"

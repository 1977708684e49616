"""The model card (README.md) of a published adapter or model, written from the records of its run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dept.io import indented
from dept.models.hub import SCHEME, Reference, is_reference, parse
from dept.runs.read import RunFiles
from dept.runs.words import expected_line, flag, judged_lines

MOST_CLASSES = 50
"""that a card lists by name"""


def model_card(meta: Mapping[str, Any], run: RunFiles | None, repo: Reference) -> str:
    """The card as Markdown. It names no folder of the machine that made it, only the last part of a path.

    Args:
        meta: metadata of the adapter or model file.
        run: the run that wrote the file, if its folder is at hand. Without it there is no verdict to report.
    """
    kind = meta["kind"]
    title = "An adapter" if kind == "adapter" else "An image classifier"
    source = _source(run)
    parts = [_front_matter(meta, source), f"# {repo.repo.split('/')[-1]}", _summary(title, meta, run)]
    if verdict := _verdict(run):
        parts += ["## Did it help?", verdict]
    parts += ["## How to load it", _loading(kind, meta, source, repo)]
    parts += ["## Data", _data(meta, run), "## Method", _method(meta), "## Protocol", _protocol(meta, run)]
    return "\n\n".join(parts) + "\n"


def _source(run: RunFiles | None) -> str:
    """The model that was adapted, if it is one that others can fetch; else empty."""
    place = str(run.inputs.get("model", "")) if run else ""
    return place if is_reference(place) else ""


def _front_matter(meta: Mapping[str, Any], source: str) -> str:
    """What the hub sorts repositories by. JSON is YAML, so whatever a name holds stays inside its quotes."""
    tags = ["dept", "domain-adaptation", "test-time-adaptation", *([meta["method"]] if "method" in meta else [])]
    entries: dict[str, Any] = {
        "library_name": "dept",
        "pipeline_tag": "image-classification",
        "tags": list(dict.fromkeys(tags)),  # a method is called like the library
    }
    if source:
        entries["base_model"] = parse(source).repo
    lines = [f"{name}: {json.dumps(value)}" for name, value in entries.items()]
    return "\n".join(["---", *lines, "---"])


def _summary(title: str, meta: Mapping[str, Any], run: RunFiles | None) -> str:
    result: Mapping[str, Any] = run.result if run else {}
    text = f"{title} for {_code(meta['arch'])}"
    if "classes" in meta:
        text += f" with {len(meta['classes'])} classes"
    if "method" in meta:
        text += f", adapted to a new domain by the method {_code(meta['method'])} without labels"
    if "tunable_model" in result:
        text += f" ({result['tunable_model']:,} parameters tuned)"
    return f"{text}. Made with dept {meta['dept_version']}."


def _verdict(run: RunFiles | None) -> str:
    """What labels said, what can be said without them, and the scores where the run had labelled images."""
    if run is None:
        return ""
    result, lines = run.result, judged_lines(run.judged) if run.judged else []
    if "expected" in result:
        lines.append(f"Estimate without labels. {expected_line(result['expected'])}")
    if "before" in result and "after" in result:
        before, after = result["before"], result["after"]
        low, high = (100 * end for end in after["ci95"])
        lines.append(
            f"Accuracy on {after['n']:,} labelled images: {100 * before['top1']:.1f} % before, "
            f"{100 * after['top1']:.1f} % after (95 % interval {low:.1f} to {high:.1f})."
        )
    if "accuracy" in result:
        lines.append(f"Accuracy on held-out source images: {100 * result['accuracy']:.1f} %.")
    if "label_free" in result and result["label_free"]["changed"]:
        lines.append(f"{100 * result['label_free']['changed']:.1f} % of the predictions changed.")
    return "\n".join(f"- {line}" for line in lines)


def _loading(kind: str, meta: Mapping[str, Any], source: str, repo: Reference) -> str:
    here = f"{SCHEME}{repo.repo}" + (f"@{repo.revision}" if repo.revision else "")
    model, adapter = (source or "MODEL.safetensors", here) if kind == "adapter" else (here, "")
    command = f"dept predict {model} IMAGES" + (f" {flag('adapter')} {adapter}" if adapter else "")
    call = f'dept.load("{model}"' + (f', adapter="{adapter}")' if adapter else ")")
    lines = ["```bash", "pip install 'dept[hub]'", command, "```", "", "```python", "import dept", ""]
    lines += [f"model = {call}", 'dept.predict(model, "images/")', "```"]
    if kind == "adapter":
        author = "" if source else " Ask the author of this adapter for that model."
        lines += ["", f"It fits one model only, whose backbone has the sha256 `{meta['backbone_sha256']}`.{author}"]
    return "\n".join(lines)


def _data(meta: Mapping[str, Any], run: RunFiles | None) -> str:
    lines = []
    if "images" in meta:
        named = Path(str(run.inputs.get("images", ""))).name if run else ""
        lines.append(f"{meta['images']:,} unlabelled images" + (f" of {_code(named)}" if named else "") + ".")
    elif run and "images" in run.result:
        lines.append(f"Trained on {run.result['images']:,} labelled images.")
    skipped = len(run.result.get("skipped", [])) if run else 0
    lines += [f"{skipped:,} files could not be read and were left out."] if skipped else []
    lines += [f"List of files: sha256 `{meta['list_sha256']}`."] if "list_sha256" in meta else []
    names = meta.get("classes", [])
    shown = ", ".join(_code(name) for name in names[:MOST_CLASSES]) + (" …" if len(names) > MOST_CLASSES else "")
    return "\n".join([*lines, *([f"\nClasses: {shown}."] if names else [])])


def _method(meta: Mapping[str, Any]) -> str:
    if "method" not in meta:
        return _json(meta.get("history", {}))
    return (
        f"{_code(meta['method'])}, seed {meta.get('seed', 0)}, with these settings:\n\n{_json(meta.get('config', {}))}"
    )


def _protocol(meta: Mapping[str, Any], run: RunFiles | None) -> str:
    """Everything that the numbers depend on, and the versions that computed them."""
    protocol: dict[str, Any] = dict(run.protocol) if run else {}
    protocol.pop("config", None)  # under "Method"
    known = protocol or {"arch": meta["arch"], "preprocess": meta["preprocess"]}
    versions: Mapping[str, Any] = run.result.get("environment", {}) if run else {}
    named = {name: versions[name] for name in ("dept", "torch", "timm", "python", "device") if name in versions}
    return _json({**known, **({"environment": named} if named else {})})


def _json(value: Any) -> str:
    return f"```json\n{indented(value).replace('```', '')}\n```"


def _code(text: object) -> str:
    """Text that Markdown shows as it is."""
    return f"`{' '.join(str(text).replace('`', '').split())}`"

from __future__ import annotations

import ast
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import dept.io as files
from dept.core.adapter import Adapter
from dept.core.select import select
from dept.errors import DataError
from dept.io import read_meta, read_shapes, read_tensors, write_atomic, write_json, write_tensors
from dept.models.files import (
    adapter_meta,
    apply_adapter,
    load,
    load_adapter,
    load_model,
    rest_hash,
    save_adapter,
    save_model,
)
from dept.models.model import Model, create_model, fingerprint, with_history
from support import same_bits, state_of, tiny_model

SRC = Path(files.__file__).parent


def adapter_of(model: Model, **entries: Any) -> Adapter:
    made = {n: t.detach().clone() for n, t in model.adapter.tensors.items()}
    meta = adapter_meta(model, backbone_sha256=fingerprint(model), method="dept", config={}, seed=0, **entries)
    return Adapter(made, meta)


def parameters(adapter: Adapter) -> int:
    return sum(tensor.numel() for tensor in adapter.tensors.values())


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path]:
    """A model file and an adapter file for it, with other prompts and head."""
    model = tiny_model()
    model.add_projections(hidden=8, bottleneck=4, out=8)
    save_model(model, tmp_path / "model.safetensors")
    adapter = adapter_of(model)
    for tensor in adapter.tensors.values():
        tensor += 0.5
    save_adapter(adapter, tmp_path / "adapter.safetensors")
    return tmp_path / "model.safetensors", tmp_path / "adapter.safetensors"


# ---- models ----


def test_model_round_trip(tmp_path: Path) -> None:
    model = tiny_model(seed=3)
    model.add_projections(hidden=8, bottleneck=4, out=8)
    with_history(model, training={"seed": 3})
    loaded = load_model(save_model(model, tmp_path / "deep" / "model.safetensors"))
    assert same_bits(state_of(model), state_of(loaded)) and loaded.card == model.card
    assert (loaded.stages, loaded.prompts_per_stage, len(loaded.projections)) == (2, 3, 2)
    assert not loaded.training and loaded.card.history == {"training": {"seed": 3}}
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(images), model(images))
    gain = loaded.projections[0].prototypes.parametrizations.weight.original0
    assert not gain.requires_grad


def test_plain_model_round_trip(tmp_path: Path) -> None:
    model = tiny_model(stages=0)
    loaded = load_model(save_model(model, tmp_path / "m.safetensors"))
    assert loaded.prompts is None and same_bits(state_of(model), state_of(loaded))


def test_model_metadata(saved: tuple[Path, Path]) -> None:
    meta = read_meta(saved[0])
    assert meta["kind"] == "model" and meta["format"] == 2 and meta["arch"] == "vit_tiny_patch16_224"
    assert (meta["stages"], meta["prompts"], meta["classes"]) == (2, 3, ["blue", "green", "red"])
    assert meta["preprocess"]["size"] == 32 and meta["preprocess"]["resize"] == 37
    assert len(meta["backbone_sha256"]) == 64 and "dept_version" in meta
    with safe_open(saved[0], framework="pt") as file:
        assert set(file.metadata()) == {"dept"}


class HeaderOnly:
    """`safe_open` of a file whose tensors must not be read."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.file = safe_open(*args, **settings)

    def __enter__(self) -> HeaderOnly:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        assert name != "get_tensor"
        return getattr(self.file, name)


def test_metadata_and_shapes_come_from_the_header_alone(
    saved: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, _ = read_tensors(saved[0], "model")
    monkeypatch.setattr(files, "safe_open", HeaderOnly)
    assert read_meta(saved[0])["kind"] == "model"
    assert read_shapes(saved[0]) == {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def test_fingerprint_covers_bytes_shapes_and_names_of_the_backbone_only() -> None:
    model = tiny_model()
    sha = fingerprint(model)
    with torch.no_grad():
        model.head.weight += 1
        model.prompts += 1
    assert fingerprint(model) == sha
    with torch.no_grad():
        model.backbone.norm.bias[0] += 1e-7
    assert fingerprint(model) != sha


# ---- adapters ----


def test_adapter_is_applied(saved: tuple[Path, Path]) -> None:
    source, adapted = load(saved[0]), load(saved[0], adapter=saved[1])
    assert torch.equal(adapted.prompts, source.prompts + 0.5) and torch.equal(adapted.head.bias, source.head.bias + 0.5)
    assert fingerprint(source) == fingerprint(adapted) and not adapted.training


def test_adapter_with_prompts_on_a_plain_model(tmp_path: Path) -> None:
    plain = tiny_model(stages=0)
    prompted = plain.with_prompts(2, 3, seed=4)
    adapter = adapter_of(prompted)
    model = apply_adapter(plain, adapter)
    assert model.stages == 2 and torch.equal(model.prompts, prompted.prompts)


@pytest.mark.parametrize("count", [3, 1000])
def test_adapter_size_is_tensors_plus_8_kib(tmp_path: Path, count: int) -> None:
    names = [f"class number {i} with a rather long name" for i in range(count)]
    model = tiny_model(names)
    adapter = adapter_of(model, list_sha256="0" * 64, images=10**6, metrics={"before": 0.123456789, "after": 0.9})
    path = save_adapter(adapter, tmp_path / "a.safetensors")
    tensors = sum(t.numel() * 4 for t in adapter.tensors.values())
    assert tensors < path.stat().st_size <= tensors + 8 * 1024
    assert load_adapter(path, model).tensors.keys() == adapter.tensors.keys()
    assert ("classes" in read_meta(path)) == (count == 3)


def test_real_configs_fit_in_8_kib_too(tmp_path: Path) -> None:
    from dataclasses import asdict

    from dept import methods

    for name in methods.available("offline"):
        model = tiny_model(1000)
        adapter = adapter_of(model)
        adapter.meta["config"] = asdict(methods.get(name).Config())
        size = save_adapter(adapter, tmp_path / f"{name}.safetensors").stat().st_size
        assert size <= parameters(adapter) * 4 + 8 * 1024


def test_half(saved: tuple[Path, Path], tmp_path: Path) -> None:
    model = load_model(saved[0])
    adapter = load_adapter(saved[1], model)
    half = save_adapter(adapter, tmp_path / "half.safetensors", half=True)
    assert abs(saved[1].stat().st_size - half.stat().st_size - 2 * parameters(adapter)) <= 32
    for name, tensor in load_adapter(half, model).tensors.items():
        assert tensor.dtype == torch.float32 and torch.allclose(tensor, adapter.tensors[name], atol=2e-3)


# ---- refusals: a DataError with a sentence ----


def test_another_backbone_is_refused_with_both_fingerprints(saved: tuple[Path, Path]) -> None:
    other = tiny_model(seed=9)
    theirs, ours = read_meta(saved[1])["backbone_sha256"], fingerprint(other)
    assert theirs != ours
    with pytest.raises(DataError, match="another backbone") as error:
        load_adapter(saved[1], other)
    assert theirs[:16] in str(error.value) and ours[:16] in str(error.value)


def test_another_head_or_prompts_over_the_same_backbone_are_refused(tmp_path: Path) -> None:
    """An adapter of norm layers belongs to the head and prompts it was made with; one that brings its own does not."""
    model = tiny_model()
    norms, whole = Adapter.of(model, select(model, "norm")), adapter_of(model)
    for name, adapter in (("norms", norms), ("whole", whole)):
        rest = rest_hash(model, adapter.tensors)
        adapter.meta = adapter_meta(model, backbone_sha256=fingerprint(model), rest_sha256=rest)
        save_adapter(adapter, tmp_path / name)
    load_adapter(tmp_path / "norms", model)
    for tensor in (model.head.bias, model.prompts):
        assert tensor is not None
        with torch.no_grad():
            tensor += 1
        with pytest.raises(DataError, match="same backbone, but another head or other prompts"):
            load_adapter(tmp_path / "norms", model)
        load_adapter(tmp_path / "whole", model)
        with torch.no_grad():
            tensor -= 1


def test_other_classes_are_refused_with_both_lists(saved: tuple[Path, Path]) -> None:
    other = tiny_model(("cat", "dog", "owl"))
    with pytest.raises(DataError, match=r"other classes.*'blue', 'green', 'red'.*'cat', 'dog', 'owl'"):
        load_adapter(saved[1], other)


def test_reordered_classes_are_other_classes(saved: tuple[Path, Path]) -> None:
    with pytest.raises(DataError, match="other classes"):
        load_adapter(saved[1], tiny_model(("green", "blue", "red")))


def test_a_long_class_list_is_refused_by_its_hash(tmp_path: Path) -> None:
    model = tiny_model([f"a long class name {i}" for i in range(500)])
    path = save_adapter(adapter_of(model), tmp_path / "a.safetensors")
    other = tiny_model([f"a long class name {i + 1}" for i in range(500)])
    with pytest.raises(DataError, match="other classes: adapter sha256"):
        load_adapter(path, other)


def test_the_wrong_kind_is_refused(saved: tuple[Path, Path]) -> None:
    with pytest.raises(DataError, match="is a dept adapter file; a model file is needed"):
        load_model(saved[1])
    with pytest.raises(DataError, match=r"is a dept model file; an? adapter file is needed"):
        load_adapter(saved[0], load_model(saved[0]))


def test_another_format_version_is_refused(saved: tuple[Path, Path], tmp_path: Path) -> None:
    tensors, meta = read_tensors(saved[1], "adapter")
    save_file(tensors, tmp_path / "new.safetensors", metadata={"dept": json.dumps(meta | {"format": 99})})
    with pytest.raises(DataError, match="has format 99; this version of dept reads formats 1 and 2"):
        read_meta(tmp_path / "new.safetensors")


def test_what_is_not_safetensors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"weight": torch.zeros(3)}, path)
    with pytest.raises(DataError, match=r"not a readable safetensors file.*dept convert"):
        load_model(path)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(DataError, match="not a readable safetensors file"):
        load_model(tmp_path / "empty")
    with pytest.raises(DataError, match="does not exist"):
        load_model(tmp_path / "nowhere.safetensors")


def test_a_run_folder_in_place_of_its_file_is_named(saved: tuple[Path, Path], tmp_path: Path) -> None:
    folder = saved[0].parent
    with pytest.raises(DataError, match=rf"{folder} is a folder.*Did you mean {saved[0]} or {saved[1]}\?"):
        load_model(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty is a folder; a file is needed here\.$"):
        load_model(tmp_path / "empty")


@pytest.mark.parametrize("keep", [4, 200, -1])
def test_a_truncated_file_is_refused(saved: tuple[Path, Path], keep: int, tmp_path: Path) -> None:
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(saved[0].read_bytes()[:keep])
    with pytest.raises(DataError, match="not a readable safetensors file"):
        load_model(cut)


def test_plain_weights_are_refused_with_the_way_in(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "plain.safetensors")
    with pytest.raises(DataError, match=r"without dept's metadata.*dept convert"):
        load_model(tmp_path / "plain.safetensors")


def test_tensors_that_do_not_fit_are_refused(saved: tuple[Path, Path], tmp_path: Path) -> None:
    tensors, meta = read_tensors(saved[0], "model")
    del tensors["head.bias"]
    write_tensors(tmp_path / "m.safetensors", tensors, meta)
    with pytest.raises(DataError, match=r"do not fit 'vit_tiny_patch16_224': head.bias is missing, \(3,\) is expected"):
        load_model(tmp_path / "m.safetensors")
    write_tensors(tmp_path / "m.safetensors", tensors, meta | {"arch": "no_such_arch"})
    with pytest.raises(DataError, match="must be the name of a timm model, found 'no_such_arch'"):
        load_model(tmp_path / "m.safetensors")


def without_checksum(meta: dict[str, Any]) -> str:
    """The header that the first format had."""
    return json.dumps({name: value for name, value in meta.items() if name != "sha256"} | {"format": 1})


def rewritten(path: Path, header: str) -> Path:
    """The same tensors under another header."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    save_file(tensors, path, metadata={"dept": header})
    return path


@pytest.mark.parametrize("header", ["[]", "{", '"text"', '{"format": 1}'])
def test_damaged_metadata_is_a_sentence_whoever_reads_it(saved: tuple[Path, Path], header: str) -> None:
    path = rewritten(saved[0], header)
    for read in (read_meta, load_model):
        with pytest.raises(DataError, match="is damaged, or was written by another version of dept"):
            read(path)


@pytest.mark.parametrize("change", ["arch", "classes", "backbone_sha256", "sharpen"])
def test_metadata_of_another_version_is_a_sentence(saved: tuple[Path, Path], change: str) -> None:
    meta = read_meta(saved[0])
    if change == "sharpen":
        meta["preprocess"][change] = 2
    else:
        del meta[change]
    rewritten(saved[0], json.dumps(meta))
    with pytest.raises(DataError, match="its checksum is not that of its content"):
        load_model(saved[0])
    rewritten(saved[0], without_checksum(meta))
    with pytest.raises(DataError, match=f"written by another version of dept.*{change}"):
        load_model(saved[0])


def test_an_adapter_without_its_hashes_is_refused(saved: tuple[Path, Path]) -> None:
    model, meta = load_model(saved[0]), read_meta(saved[1])
    for missing in ("backbone_sha256", "classes_sha256"):
        rewritten(saved[1], without_checksum({key: value for key, value in meta.items() if key != missing}))
        with pytest.raises(DataError, match=f"written by another version of dept.*{missing}"):
            load_adapter(saved[1], model)


def test_a_backbone_that_was_changed_in_the_file_is_refused(saved: tuple[Path, Path]) -> None:
    tensors, meta = read_tensors(saved[0], "model")
    tensors["backbone.blocks.1.attn.qkv.weight"][0, 0] = 0.0
    save_file(tensors, saved[0], metadata={"dept": without_checksum(meta)})
    with pytest.raises(DataError, match="has changed since the file was written") as error:
        load_model(saved[0])
    assert meta["backbone_sha256"][:16] in str(error.value)


@pytest.mark.parametrize("which", [0, 1])
def test_a_flipped_bit_anywhere_in_a_file_is_noticed(saved: tuple[Path, Path], which: int) -> None:
    """In a tensor, in the metadata, in the header: loading says so, or the bit was of no consequence (white space)."""
    path, rng = saved[which], random.Random(which)
    model, whole = load_model(saved[0]), path.read_bytes()
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DataError):
            load_model(path) if which == 0 else load_adapter(path, model)


def test_exchanged_class_names_are_noticed(saved: tuple[Path, Path]) -> None:
    meta = read_meta(saved[0])
    rewritten(saved[0], json.dumps(meta | {"classes": meta["classes"][::-1]}))
    with pytest.raises(DataError, match="is damaged: its checksum"):
        load_model(saved[0])


def test_files_of_the_first_format_are_read_and_say_what_they_lack(
    saved: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    before = state_of(load_model(saved[0]))
    rewritten(saved[0], without_checksum(read_meta(saved[0])))
    with caplog.at_level("INFO"):
        assert same_bits(before, state_of(load_model(saved[0])))
    assert "format 1, which carries no checksum" in caplog.text


@pytest.mark.parametrize(
    ("change", "said"), [
        ({"arch": "hf-hub:somebody/model"}, "name of a timm model"),
        ({"arch": "local-dir:/etc"}, "name of a timm model"),
        ({"options": {"checkpoint_path": "weights.bin"}}, "'checkpoint_path' is not supported"),
        ({"options": {"pretrained_cfg": {"file": "x"}}}, "'pretrained_cfg' is not supported"),
        ({"options": {"depth": 10**6}}, "must be a plain value"),
        ({"options": {"depth": 20_000}}, "depth is 20000"),
        ({"arch": "resnet18", "options": {"layers": [2, 2, 2, 20_000]}}, r"layers is .*, but the file has"),
        ({"options": {"embed_dim": 65_000, "num_heads": 2, "depth": 4}}, "do not fit"),
        ({"options": {"norm_eps": "x"}}, "norm_eps must be between 0 and 1"),
        ({"options": {"act_layer": "x"}}, "metadata of .* is damaged"),
        ({"stages": 10**9, "prompts": 10**9}, "prompts, but tensors of 2 x 3"),
        ({"classes": ["a"]}, "1 class names for a head of 3 outputs"),
        ({"classes": "abc"}, "classes must be a list of names"),
        ({"auxiliary_task": 3}, "auxiliary_task must be the name of a task, found 3"),
        ({"projection": {"hidden": 10**9, "bottleneck": 1, "out": 1}}, "sizes of projection"),
        ({"preprocess": {"size": 32, "resize": 36, "rule": "x"}}, "no resize rule 'x'"),
        ({"preprocess": {"std": [0.0, 1.0, 1.0]}}, "std above 0"),
        ({"preprocess": {"size": 10**9}}, "size and resize must be whole numbers"),
        ({"augment": {"flip": float("nan")}}, "flip must be 1 numbers from 0 to 100"),
    ]
)  # fmt: skip
def test_metadata_is_checked_before_anything_is_built(
    saved: tuple[Path, Path], change: dict[str, Any], said: str
) -> None:
    """With a checksum that fits: this is not about damage. Nothing but the file is opened, nothing large is made."""
    tensors, meta = read_tensors(saved[0], "model")
    write_tensors(saved[0], tensors, meta | change)
    with pytest.raises(DataError, match=said):
        load_model(saved[0])


def test_tables_that_no_file_holds_are_bounded(tmp_path: Path) -> None:
    """Rotations are computed for the image size, which the tensors of such a model do not show."""
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "depth": 1}
    path = save_model(create_model("vit_small_patch16_rope_224", 3, **small), tmp_path / "model.safetensors")
    tensors, meta = read_tensors(path, "model")
    write_tensors(path, tensors, meta | {"options": small | {"img_size": 65_536}})
    with pytest.raises(DataError, match=r"tables of 2,147,483,\d+ numbers beside its weights"):
        load_model(path)


def test_numbers_that_are_not_finite_are_neither_written_nor_read(saved: tuple[Path, Path], tmp_path: Path) -> None:
    adapter = load_adapter(saved[1], load_model(saved[0]))
    adapter.tensors["head.bias"][0] = 1e6
    with pytest.raises(DataError, match=r"was not written: head.bias holds numbers that are not finite"):
        save_adapter(adapter, tmp_path / "half.safetensors", half=True)
    assert not (tmp_path / "half.safetensors").exists()
    tensors, meta = read_tensors(saved[0], "model")
    tensors["head.bias"][0] = float("nan")
    save_file(tensors, saved[0], metadata={"dept": without_checksum(meta)})
    with pytest.raises(DataError, match=r"not finite, in head.bias"):
        load_model(saved[0])


# ---- atomic writes ----


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_atomic(path, b"old")

    def fail(self: Path, target: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(DataError, match=r"result\.json could not be written \(disk full\)"):
            write_atomic(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["result.json"]
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new" and [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_writes_are_readable_by_others_and_leave_no_temp_files(saved: tuple[Path, Path]) -> None:
    assert saved[0].stat().st_mode & 0o777 == 0o644
    assert sorted(p.name for p in saved[0].parent.iterdir()) == ["adapter.safetensors", "model.safetensors"]


def test_lists_of_numbers_take_one_line_and_strings_stay_as_they_are(tmp_path: Path) -> None:
    value = {"a": [1, -2.5, 3e-05], "b": ["[\n1,\n2\n]", "x"], "c": [], "d": {"e": [[1, 2], [3]]}}
    write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text) == value
    assert '"a": [1, -2.5, 3e-05]' in text and "[1, 2]" in text and '"b": [\n' in text


def test_metadata_survives_unicode(tmp_path: Path) -> None:
    model = tiny_model(("Käfer", "小鸟", 'a"b'))
    loaded = load_model(save_model(model, tmp_path / "m.safetensors"))
    assert loaded.classes == ("Käfer", "小鸟", 'a"b')
    assert json.loads(json.dumps(loaded.card.classes)) == list(model.classes)


# ---- no pickle ----


def test_no_pickle_anywhere_in_the_package() -> None:
    for file in SRC.rglob("*.py"):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {"dill", "joblib", "cloudpickle", "shelve", "marshal"} & set(names), file
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = ast.unparse(node.func.value)
                if owner == "torch" and node.func.attr == "load":
                    safe = {k.arg: ast.unparse(k.value) for k in node.keywords}.get("weights_only")
                    assert safe == "True", f"{file}: torch.load without weights_only=True"
                assert not (owner == "torch" and node.func.attr == "save"), file
                assert owner != "pickle", f"{file}: calls pickle (only its exceptions may be named)"
                if owner in ("np", "numpy") and node.func.attr == "load":
                    assert "allow_pickle=True" not in ast.unparse(node), file

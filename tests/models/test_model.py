from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.data import ImageNetInfo

from dept.errors import DataError, UsageError
from dept.models.files import load_model, save_model
from dept.models.model import Model, create_model
from support import TIMM, same_bits, scramble, state_of, tiny_model


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """What a download of tiny ImageNet weights would be: timm's names, 1000 classes."""
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, **TIMM)
    scramble(model)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    path = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    save_file(state, path)
    return path, state


def test_weights_are_loaded_into_the_backbone(weights: tuple[Path, dict[str, torch.Tensor]]) -> None:
    path, state = weights
    model = create_model("vit_tiny_patch16_224", 3, weights=path, **TIMM)
    expected = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
    assert same_bits(dict(model.backbone.state_dict()), expected)


def test_the_pretrained_head_is_kept_for_the_pretrained_classes(weights: tuple[Path, dict[str, torch.Tensor]]) -> None:
    path, state = weights
    imagenet = ImageNetInfo().label_names()
    for classes in (1000, imagenet):
        model = create_model("vit_tiny_patch16_224", classes, weights=path, **TIMM)
        assert torch.equal(model.head.weight, state["head.weight"])
        assert torch.equal(model.head.bias, state["head.bias"])
    assert model.classes == tuple(imagenet)


def test_the_head_is_fresh_for_other_classes(weights: tuple[Path, dict[str, torch.Tensor]]) -> None:
    path, state = weights
    other_names = [f"thing {n}" for n in range(1000)]
    for classes in (12, other_names, list(reversed(ImageNetInfo().label_names()))):
        model = create_model("vit_tiny_patch16_224", classes, weights=path, **TIMM)
        head = model.head
        assert head.out_features == len(model.classes) and torch.equal(head.bias, torch.zeros_like(head.bias))
        assert head.out_features != 1000 or not torch.equal(head.weight, state["head.weight"])
        assert 0.01 < float(head.weight.detach().std()) < 0.03


def test_without_weights_the_head_is_fresh_even_for_a_thousand() -> None:
    model = tiny_model(1000)
    assert torch.equal(model.head.bias, torch.zeros(1000))


def test_position_embedding_is_resampled(weights: tuple[Path, dict[str, torch.Tensor]]) -> None:
    model = create_model("vit_tiny_patch16_224", 3, weights=weights[0], **TIMM | {"img_size": 48})
    assert model.backbone.pos_embed.shape == (1, 37, 32) and model.card.preprocess.size == 48


def test_same_seed_same_model_and_no_side_effect() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one = tiny_model(seed=1)
    assert torch.equal(torch.rand(1), expected), "create_model must not touch the global generator"
    assert same_bits(state_of(one), state_of(tiny_model(seed=1)))
    assert not torch.equal(one.prompts, tiny_model(seed=2).prompts)


def test_classes_by_number_and_by_name() -> None:
    assert tiny_model(3).classes == ("0", "1", "2")
    assert tiny_model(["b", "a"]).classes == ("b", "a")


def test_preprocessing_follows_the_architecture() -> None:
    pre = create_model("vit_tiny_patch16_224", 2, **TIMM | {"img_size": 128}).card.preprocess
    assert (pre.size, pre.resize, pre.mean, pre.std) == (128, 146, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    deit = create_model("deit_tiny_patch16_224", 2, depth=1, embed_dim=32, num_heads=1).card.preprocess
    assert deit.mean == pytest.approx((0.485, 0.456, 0.406)) and (deit.size, deit.resize) == (224, 256)
    grey = tiny_model(2, in_chans=1).card.preprocess
    assert grey.channels == 1 and grey.mean == (0.5,)


def test_with_prompts_shares_the_backbone_and_copies_the_head() -> None:
    plain = tiny_model(stages=0)
    one, two = plain.with_prompts(2, 4, seed=1), plain.with_prompts(2, 4, seed=1)
    assert one.backbone is plain.backbone and one.card == plain.card
    assert one.head is not plain.head and same_bits(state_of(one.head), state_of(plain.head))
    assert one.prompts.shape == (2, 4, 32) and torch.equal(one.prompts, two.prompts)
    assert not torch.equal(one.prompts, plain.with_prompts(2, 4, seed=2).prompts)
    for stages, prompts in ((0, 4), (2, 0)):
        with pytest.raises(
            UsageError, match=f"at least 1 for a method that tunes prompts, found {stages} and {prompts}"
        ):
            plain.with_prompts(stages, prompts)


def test_a_head_without_bias_gets_zeros_and_survives_its_file(tmp_path: Path) -> None:
    plain = tiny_model(stages=0)
    head = torch.nn.Linear(plain.head.in_features, plain.head.out_features, bias=False)
    images = torch.randn(2, 3, 32, 32)
    expected = plain.read(images).features @ head.weight.T
    model = Model(plain.backbone, head, plain.card)
    torch.testing.assert_close(model(images), expected)
    loaded = load_model(save_model(model, tmp_path / "model.safetensors"))
    torch.testing.assert_close(loaded(images), expected)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"timm knows no architecture 'vit_huge_magic'. Close names: .*vit"):
        create_model("vit_huge_magic", 3)
    with pytest.raises(DataError, match=r"checkpoint .*nowhere does not exist"):
        create_model("vit_tiny_patch16_224", 3, weights=tmp_path / "nowhere")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    with pytest.raises(DataError, match="cannot be read as plain weights"):
        create_model("vit_tiny_patch16_224", 3, weights=tmp_path / "junk.safetensors", **TIMM)

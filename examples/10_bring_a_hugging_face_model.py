"""Bring a Hugging Face model: convert its folder, adapt it without labels, see what changed.

python examples/10_bring_a_hugging_face_model.py runs/hugging_face

Here the folder is written on the fly, in the layout of transformers, from the digits model that dept carries. With a
model of your own begin at `dept convert FOLDER`, or `dept convert hf-hub:USER/REPO`.
"""

import json
import sys
from pathlib import Path

from safetensors.torch import save_file

import dept
from dept.bench.suites.digits import EMBEDDED
from dept.cli.main import main
from dept.data.digits import real_digits, write_digits

NAMES = {"norm1": "layernorm_before", "norm2": "layernorm_after", "attn.proj": "attention.output.dense",
         "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}  # fmt: skip
STEM = {"cls_token": "cls_token", "pos_embed": "position_embeddings", "patch_embed.proj": "patch_embeddings.projection"}


def write_hugging_face_folder(folder: Path) -> None:
    """What `ViTForImageClassification.save_pretrained` would write."""
    model, tensors = dept.load(EMBEDDED), {}
    for name, tensor in model.backbone.state_dict().items():
        for ours, theirs in STEM.items():
            name = name.replace(ours, f"embeddings.{theirs}")
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        name = f"vit.{name}".replace("vit.blocks.", "vit.encoder.layer.").replace("vit.norm.", "vit.layernorm.")
        parts = tensor.chunk(3) if "attn.qkv" in name else [tensor]
        for part, chunk in zip(("query", "key", "value"), parts, strict=False):
            tensors[name.replace("attn.qkv", f"attention.attention.{part}")] = chunk.clone()
    tensors |= {f"classifier.{name}": tensor for name, tensor in model.head.state_dict().items()}
    pre, options = model.card.preprocess, model.card.options
    config = {"model_type": "vit", "num_attention_heads": options["num_heads"], "layer_norm_eps": 1e-6,
              "id2label": dict(enumerate(model.classes))}  # fmt: skip
    processor = {"size": pre.resize, "do_center_crop": True, "crop_size": pre.size, "resample": 2,
                 "image_mean": pre.mean, "image_std": pre.std}  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


out = Path(sys.argv[1])
write_hugging_face_folder(out / "my_vit")
images, labels = real_digits()
write_digits(out / "new_site", (images[:200], labels[:200]))
(out / "model.safetensors").unlink(missing_ok=True)
main(["convert", str(out / "my_vit"), "--out", str(out / "model.safetensors")])
# All digits are about as frequent here, which says more than the file does. Labels only score.
settings = {"prior": "uniform", "max_iters": 20, "prompts": 8, "score_on": out / "new_site", "overwrite": True}
print(dept.adapt(out / "model.safetensors", out / "new_site", out=out / "run", **settings))

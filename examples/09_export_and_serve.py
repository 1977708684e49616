"""Label images with an exported model. ONNX Runtime, NumPy and Pillow are all it needs.

dept export runs/source/model.safetensors --adapter runs/site/adapter.safetensors --out site.onnx
python examples/09_export_and_serve.py site.onnx new_site/*.jpg

dept export runs/source/model.safetensors --adapter runs/*/adapter.safetensors --adapter-inputs --out all.onnx
python examples/09_export_and_serve.py all.onnx --adapter all-site.onnx_adapter new_site/*.jpg
"""

import argparse
import json

import numpy as np
import onnxruntime as ort
from PIL import Image, ImageOps


def preprocess(path, size, resize, rule, interpolation, mean, std):
    """One 8-bit image as float32 (channels, size, size): resize, crop the centre, normalise."""
    image = ImageOps.exif_transpose(Image.open(path)).convert("L" if len(mean) == 1 else "RGB")
    if rule != "none":
        factor = resize / min(image.size)
        sides = (resize, resize) if rule == "squash" else tuple(round(side * factor) for side in image.size)
        image = image.resize(sides, Image.Resampling[interpolation.upper()])
    left, top = ((side - size) // 2 for side in image.size)
    pixels = np.asarray(image.crop((left, top, left + size, top + size)), np.float32).reshape(size, size, -1) / 255
    return ((pixels - np.float32(mean)) / np.float32(std)).transpose(2, 0, 1)


parser = argparse.ArgumentParser()
parser.add_argument("graph")
parser.add_argument("images", nargs="+")
parser.add_argument("--adapter", help="file of a domain, for a graph with adapter inputs")
given = parser.parse_args()

options = ort.SessionOptions()
options.log_severity_level = 3  # no warning that adapter inputs have defaults
session = ort.InferenceSession(given.graph, options)
meta = json.loads(session.get_modelmeta().custom_metadata_map["dept"])

run_options = ort.RunOptions()
if given.adapter:
    # The same number in both says that they were exported from the same model.
    if ort.AdapterFormat.read_adapter(given.adapter).get_model_version() != session.get_modelmeta().version:
        raise SystemExit(f"{given.adapter} belongs to another model than {given.graph}.")
    adapter = ort.LoraAdapter()
    adapter.Load(given.adapter)
    run_options.add_active_adapter(adapter)

for start in range(0, len(given.images), 16):
    paths = given.images[start : start + 16]
    batch = np.stack([preprocess(path, **meta["preprocess"]) for path in paths])
    (logits,) = session.run(["logits"], {"images": batch}, run_options)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    for path, row in zip(paths, weights / weights.sum(axis=1, keepdims=True), strict=True):
        print(f"{path}: {meta['classes'][row.argmax()]} ({row.max():.4f})")

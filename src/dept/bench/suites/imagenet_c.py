"""`imagenet-c`: 15 corruptions at severity 5, all 50,000 images each, ViT-B/16 AugReg, top-1 error.

Corrupted images are 224 px already and are used as they are (identity resize), but for weak views, which are enlarged
to 256 px and cropped at random, so that pseudo-labels see what the recipe says and not the same crop every time. Every
corruption starts from the source model. The plain one is timm's with its own head; DePT's prompts are trained on
ImageNet for 11,000 steps, without the warm-up of the teacher's temperature over three of five epochs that the authors'
script has, and the images that pick the best epoch are squashed to 224 px. CFA's statistics are of training images
resized to 256 px and cropped. The paper prints SHOT-IM among the offline methods; it cites CFA's benchmark, where it is
one online pass over norm layers.
"""

from __future__ import annotations

from dept.bench.shift import Shift
from dept.bench.suite import Row, Source, Suite
from dept.bench.suites.visda import ARCH
from dept.data.corruptions import CORRUPTIONS
from dept.methods.source_training import OFFICIAL

IDENTITY = {"resize": 224, "weak_resize": 256}
WHOLE = {"stats": {"rule": "shorter", "resize": 256}}

SUITE = Suite(
    name="imagenet-c",
    title="15 corruptions of ImageNet at severity 5, offline and online; ViT-B/16",
    data="imagenet-c",
    shifts=tuple(Shift(("clean",), (f"{name}/5",)) for name in CORRUPTIONS),
    sources={
        "plain": Source(ARCH, config=None, extra=IDENTITY),
        "G": Source(ARCH, 4, 50, config=OFFICIAL | {"max_iters": 11_000}, extra=IDENTITY),
    },
    rows=(
        Row("Source", "source", "plain", paper="Source (ViT-B)"),
        Row("Source (prompted, M=4)", "source", "G"),
        Row("SHOT-IM", "shot", "plain", preset="im"),
        Row("AdaContrast", "adacontrast", "plain", preset="offline", paper="AdaContrast (ViT-B) offline"),
        Row("DePT-G", "dept", "G", preset="official", paper="DePT-G (ViT-B) offline"),
        Row("Tent, online", "tent", "plain", "online", preset="online"),
        Row("SHOT-IM, online", "shot", "plain", "online", preset="online-ln", paper="SHOT-IM (ViT-B) offline"),
        Row(
            "AdaContrast, online", "adacontrast", "plain", "online", preset="online", paper="AdaContrast (ViT-B) online"
        ),
        Row("CFA, online", "cfa", "plain", "online", preset="online", extra=WHOLE, paper="CFA (ViT-B) online"),
        Row("DePT-G, online", "dept", "G", "online", preset="online", paper="DePT-G (ViT-B) online"),
    ),
    seeds=(2020,),
    metric="error",
    paper="imagenet-c",
)

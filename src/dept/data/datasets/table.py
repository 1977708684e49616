"""The table of benchmark data sets: domains, official counts, class order, layout, home page, licence."""

from __future__ import annotations

from dept.data.corruptions import CORRUPTIONS, EXTRA
from dept.data.datasets.find import Benchmark, Domain


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


VISDA_CLASSES = _words("aeroplane bicycle bus car horse knife motorcycle person plant skateboard train truck")
PACS_CLASSES = _words("dog elephant giraffe guitar horse house person")
OFFICE_CALTECH_CLASSES = _words("backpack bike calculator headphones keyboard laptop monitor mouse mug projector")
OFFICE_HOME_CLASSES = _words(
    """Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards Computer
    Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder Fork Glasses Hammer
    Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen
    Pencil Postit_Notes Printer Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda
    Speaker Spoon TV Table Telephone ToothBrush Toys Trash_Can Webcam"""
)
# The order of the published lists, which is not quite the alphabet's.
DOMAINNET_CLASSES = _words(
    """aircraft_carrier alarm_clock ant anvil asparagus axe banana basket bathtub bear bee bird blackberry blueberry
    bottlecap broccoli bus butterfly cactus cake calculator camel camera candle cannon canoe carrot castle cat
    ceiling_fan cello cell_phone chair chandelier coffee_cup compass computer cow crab crocodile cruise_ship dog
    dolphin dragon drums duck dumbbell elephant eyeglasses feather fence fish flamingo flower foot fork frog giraffe
    goatee grapes guitar hammer helicopter helmet horse kangaroo lantern laptop leaf lion lipstick lobster microphone
    monkey mosquito mouse mug mushroom onion panda peanut pear peas pencil penguin pig pillow pineapple potato
    power_outlet purse rabbit raccoon rhinoceros rifle saxophone screwdriver sea_turtle see_saw sheep shoe skateboard
    snake speedboat spider squirrel strawberry streetlight string_bean submarine swan table teapot teddy-bear
    television The_Eiffel_Tower The_Great_Wall_of_China tiger toe train truck umbrella vase watermelon whale
    zebra"""
)


def _visda(name: str, images: int, *, optional: bool = False) -> Domain:
    # The release has a list in each folder (that of the test images is in the devkit's repository, to be put there);
    # AdaContrast's and SHOT's lists lie beside the folders.
    lists = (f"{name}/image_list.txt", f"{name}_list.txt")
    # The test images lie in numbered folders that say nothing about the class.
    return Domain(name, images, lists=lists, needs_list=optional, optional=optional)


def _corrupted() -> tuple[Domain, ...]:
    names = [*CORRUPTIONS, *EXTRA]
    return tuple(Domain(f"{c}/{s}", 50_000, optional=c in EXTRA) for c in names for s in range(1, 6))


def _listed(name: str, images: int) -> Domain:
    return Domain(name, images, lists=(f"{name}_list.txt",), needs_list=True)


TABLE: tuple[Benchmark, ...] = (
    Benchmark(
        "visda",
        "VisDA-C",
        (_visda("train", 152_397), _visda("validation", 55_388), _visda("test", 72_372, optional=True)),
        VISDA_CLASSES,
        ("visda-c", "visda", "visda17", "visda2017", "visda-2017"),
        "https://ai.bu.edu/visda-2017/",
        "non-commercial research, no redistribution",
    ),
    Benchmark(
        "imagenet-c",
        "ImageNet-C",
        _corrupted(),
        None,
        ("imagenet-c", "imagenetc"),
        "https://github.com/hendrycks/robustness",
        "CC BY 4.0; made from ImageNet, see its terms",
    ),
    Benchmark(
        "imagenet",
        "ImageNet",
        (Domain("val", 50_000, ("val", ".")), Domain("train", 1_281_167, optional=True)),
        None,
        ("imagenet-val", "imagenet", "imagenet-1k", "ilsvrc2012"),
        "https://image-net.org/download.php",
        "non-commercial research, ImageNet's terms of access",
    ),
    Benchmark(
        "domainnet-126",
        "DomainNet-126 (cleaned)",
        (_listed("real", 69_622), _listed("clipart", 18_523), _listed("painting", 30_042), _listed("sketch", 24_147)),
        DOMAINNET_CLASSES,
        ("domainnet-126", "domainnet126", "domainnet"),
        "https://ai.bu.edu/M3SDA/ (images, cleaned version) and https://github.com/DianCh/AdaContrast (list files)",
        "fair-use notice: non-commercial research",
    ),
    Benchmark(
        "pacs",
        "PACS",
        tuple(
            Domain(name, images)
            for name, images in (("photo", 1_670), ("art_painting", 2_048), ("cartoon", 2_344), ("sketch", 3_929))
        ),
        PACS_CLASSES,
        ("pacs",),
        "https://domaingeneralization.github.io/",
        "no terms stated",
        inside=("kfold", "pacs_data/pacs_data", "pacs_data", ""),
    ),
    Benchmark(
        "office-home",
        "Office-Home",
        (
            Domain("Art", 2_427),
            Domain("Clipart", 4_365),
            Domain("Product", 4_439),
            Domain("Real World", 4_357, ("Real World", "RealWorld", "Real_World", "Real")),
        ),
        OFFICE_HOME_CLASSES,
        ("office-home", "officehome", "office_home", "OfficeHomeDataset_10072016"),
        "https://www.hemanthdv.org/officeHomeDataset.html",
        "fair-use notice: non-commercial research",
    ),
    Benchmark(
        "office-caltech",
        "Office-Caltech-10",
        tuple(
            Domain(name, images)
            for name, images in (("amazon", 958), ("caltech10", 1_123), ("webcam", 295), ("dslr", 157))
        ),
        OFFICE_CALTECH_CLASSES,
        ("office-caltech", "office-caltech-10", "office_caltech_10", "officecaltech10"),
        "https://github.com/jindongwang/transferlearning/tree/master/data",
        "no terms stated",
    ),
)

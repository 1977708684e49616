"""Every constant that a method's paper or released code gives: a change of a default must be meant."""

from __future__ import annotations

from typing import Any

import pytest

from dept import methods
from dept.models import stats

SGD = {"momentum": 0.9, "nesterov": False, "weight_decay": 0.0}
DEPT_RECIPE = {
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 1e-4,
    "schedule": "cosine",
    "batch": 128,
    "epochs": 15,
}
ONE_PASS = SGD | {
    "lr": 1e-3,
    "schedule": "constant",
    "batch": 64,
    "epochs": 1,
    "predict": "before",
    "steps_per_batch": 1,
}
PUBLISHED: dict[tuple[str, str], dict[str, Any]] = {
    ("tent", "online"): ONE_PASS | {"view": "test"},
    ("tent", "offline"): SGD | {"lr": 1e-3, "schedule": "cosine", "batch": 128, "epochs": 15, "view": "weak"},
    ("cfa", "online"): ONE_PASS | {"clip": 1.0, "w_all": 1.0, "w_class": 1.0},
    ("eata", "online"): ONE_PASS | {"entropy_margin": 0.4, "mean_momentum": 0.9, "w_fisher": 2000.0},
    ("eata", "eta"): ONE_PASS | {"w_fisher": 0.0},
    ("eata", "released"): ONE_PASS | {"entropy_margin": 0.4, "redundancy": 0.05, "w_fisher": 2000.0},
    ("sar", "online"): ONE_PASS | {"entropy_margin": 0.4, "rho": 0.05, "loss_momentum": 0.9, "reset_below": 0.029},
    ("deyo", "online"): ONE_PASS | {"entropy_margin": 0.5, "weight_margin": 0.4, "least_drop": 0.2, "patches": 4},
    ("roid", "online"): ONE_PASS
    | {"lr": 2.5e-4, "nesterov": True, "temperature": 0.3333, "mean_momentum": 0.9, "source_share": 0.01},
    ("rotta", "online"): ONE_PASS | {"memory_size": 64, "w_age": 1.0, "w_entropy": 1.0, "ema": 0.999},
    ("cotta", "released"): ONE_PASS
    | {"lr": 5e-3, "ema": 0.999, "restore": 0.001, "confidence": 0.1, "augmentations": 32},
    ("spa", "online"): ONE_PASS
    | {"lr": 0.01, "predictor_lr": 0.05, "noise_lr": 1.0, "noise": 0.4, "noise_patch": 16}
    | {"low_share": 0.2, "drop": 0.2},
    ("neo", "online"): {"lr": 0.0, "predict": "after", "mean_ema": 0.0, "prior_count": 16.0},
    ("neo", "continual"): {"mean_ema": 0.1},
    ("ttt", "online"): ONE_PASS | {"momentum": 0.0, "predict": "after", "tune": "encoder"},
    ("ttt++", "offline"): DEPT_RECIPE
    | {"lr": 2e-4, "w_contrast": 0.5 / 0.07, "w_features": 0.05, "w_projections": 0.2, "queue_size": 1536},
    ("ttt++", "released"): {"lr": 0.01, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0, "batch": 256},
    ("hdmi", "offline"): DEPT_RECIPE | {"lr": 2e-4, "weight_decay": 5e-4, "w_disparity": 0.5},
    ("shot", "offline"): DEPT_RECIPE | {"lr": 2e-4, "w_pl": 0.3, "label_refresh": 1, "log": "shifted", "view": "weak"},
    ("shot", "im"): DEPT_RECIPE | {"lr": 2e-4, "im_only": True},
    ("shot", "released"): {"lr": 1e-4, "weight_decay": 1e-3, "batch": 64, "power_decay": True, "quiet_start": True}
    | {"labels_per_run": 15, "epochs": 15},
    ("shot", "online-ln"): ONE_PASS | {"im_only": True, "tune": "norm", "clip": 1.0, "log": "clamped", "view": "test"},
    ("adacontrast", "offline"): DEPT_RECIPE
    | {"lr": 2e-4, "head_lr_scale": 10.0, "ema": 0.999, "queue_size": 16384, "temperature": 0.07, "neighbours": 10}
    | {"bank_size": 0, "w_pl": 1.0, "w_contrast": 1.0, "w_class": 1.0},
    ("adacontrast", "online"): {"schedule": "constant", "predict": "after", "epochs": 1, "bank_warmup": 1024},
    ("adacontrast", "ln"): {"tune": "norm", "lr": 1e-3},
    ("aad", "offline"): DEPT_RECIPE | {"batch": 64, "lr": 5e-3, "neighbours": 5, "w_disperse": 1.0, "decay": 5.0},
    ("notela", "offline"): DEPT_RECIPE | {"lr": 5e-3, "neighbours": 15, "w_neighbours": 2.0, "softness": 1.0},
}


@pytest.mark.parametrize(("name", "preset"), PUBLISHED)
def test_defaults_are_the_published_ones(name: str, preset: str) -> None:
    config = methods.get(name).preset(preset)
    expected = PUBLISHED[name, preset]
    assert {field: getattr(config, field) for field in expected} == expected


def test_fisher_weights_come_from_2000_images_in_batches_of_64() -> None:
    assert stats.FISHER_BATCH == 64
    assert stats.compute_stats.__kwdefaults__["fisher_images"] == 2000

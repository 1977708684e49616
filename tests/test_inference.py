from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dept
from dept.data.decoding import decode
from dept.data.images import find_images, find_labelled
from dept.data.loader import Runtime, Views, batches, ordered_keys
from dept.errors import DataError, UsageError
from dept.inference import as_row, evaluate, predict
from dept.models.files import load_model
from dept.models.model import Model
from dept.runs.loops import class_probabilities
from dept.runs.stream import stream
from dept.runs.train import TrainRun


def test_the_public_names_exist() -> None:
    for name in dept.__all__:
        assert getattr(dept, name) is not None
    assert sorted(dept.__all__) == sorted(dir(dept))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dept.nonsense


def test_predictions_are_the_models_softmax(source_model: Model, target_images: Path) -> None:
    images = find_images(target_images)
    ((_, (views,)),) = batches(images, "t", Views(source_model.card.preprocess), ordered_keys(10, 10))
    with torch.no_grad():
        expected = source_model(views).softmax(dim=1)
    for batch in (3, 64):
        rows = predict(source_model, target_images, device="cpu", batch=batch, topk=2)
        assert [row.path for row in rows] == images.names()
        for row, probabilities in zip(rows, expected, strict=True):
            assert row.label == source_model.classes[int(probabilities.argmax())]
            assert row.confidence == pytest.approx(float(probabilities.max()), abs=1e-5)
            assert len(row.topk) == 2 and row.topk[0] == (row.label, row.confidence)


def test_every_kind_of_input_gives_the_same_answer(source_model: Model, target_images: Path) -> None:
    path = find_images(target_images).paths[0]
    image = decode(path)
    kinds = [path, str(path), image, np.asarray(image)]
    answers = [predict(source_model, kind, device="cpu")[0] for kind in kinds]
    assert {answer.label for answer in answers} == {answers[0].label}
    for answer in answers:
        assert answer.confidence == pytest.approx(answers[0].confidence, abs=1e-6)
    assert answers[0].path == path.name and answers[2].path == ""


def test_grey_arrays_and_palettes(source_model: Model) -> None:
    grey = np.arange(1600, dtype=np.uint8).reshape(40, 40)
    one = predict(source_model, grey, device="cpu")[0]
    two = predict(source_model, np.stack([grey] * 3, axis=2), device="cpu")[0]
    three = predict(source_model, Image.fromarray(grey).convert("P"), device="cpu")[0]
    assert one.confidence == pytest.approx(two.confidence, abs=1e-6) == pytest.approx(three.confidence, abs=1e-6)


def test_an_opened_file_is_read_like_its_path(source_model: Model, tmp_path: Path) -> None:
    """Turned by its EXIF data, and with 16 bits: Pillow's own conversion does neither."""
    shades = np.tile(np.arange(0, 65_536, 2048, dtype=np.uint16), (48, 1))
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray((shades // 257).astype(np.uint8)).save(tmp_path / "turned.png", exif=exif)
    Image.fromarray(shades).save(tmp_path / "deep.png")
    for path in (tmp_path / "turned.png", tmp_path / "deep.png"):
        with Image.open(path) as image:
            opened = predict(source_model, image, device="cpu")[0]
            streamed = next(stream(source_model, [[image]], method="source", device="cpu"))[0]
        expected = predict(source_model, path, device="cpu")[0]
        assert opened.confidence == pytest.approx(expected.confidence, abs=1e-6)
        assert float(streamed.softmax(dim=-1).max()) == pytest.approx(expected.confidence, abs=1e-6)


def test_topk_of_nothing(source_model: Model, target_images: Path) -> None:
    with pytest.raises(UsageError, match="`topk` must be at least 1"):
        predict(source_model, target_images, topk=0)


def test_features_on_request(source_model: Model, target_images: Path) -> None:
    rows = predict(source_model, target_images, device="cpu", features=True)
    assert len(rows[0].features) == 32 and "features" in as_row(rows[0])
    assert "features" not in as_row(predict(source_model, target_images, device="cpu")[0])


def test_evaluate_by_hand(source_model: Model, target_labelled: Path) -> None:
    images = find_labelled(target_labelled)
    probabilities = class_probabilities(source_model, images, Runtime())
    scores = evaluate(source_model, target_labelled, device="cpu", batch=5)
    hits = [int(row.argmax()) == label for row, label in zip(probabilities, images.labels, strict=True)]
    assert scores["n"] == 12 and scores["top1"] == pytest.approx(sum(hits) / 12)
    assert scores["mean_per_class"] == pytest.approx(sum(scores["per_class"].values()) / 3)


def test_predicting_changes_nothing(source_model: Model, target_images: Path) -> None:
    before = {name: tensor.clone() for name, tensor in source_model.state_dict().items()}
    source_model.train()
    predict(source_model, target_images, device="cpu")
    assert all(torch.equal(before[n], t) for n, t in source_model.state_dict().items())


def test_a_classifier_in_the_manner_of_scikit_learn(source_run: TrainRun, target_labelled: Path) -> None:
    from sklearn.metrics import accuracy_score, log_loss

    images = find_labelled(target_labelled)
    truth = [images.classes[label] for label in images.labels or ()]
    classifier = dept.Classifier.load(source_run.file, device="cpu", batch=5)
    expected = evaluate(load_model(source_run.file), target_labelled, device="cpu")
    top1 = pytest.approx(expected["top1"], abs=1e-6)
    probabilities = classifier.predict_proba(images.paths)
    assert probabilities.shape == (12, 3) and list(classifier.classes_) == list(images.classes)
    assert accuracy_score(truth, classifier.predict([str(path) for path in images.paths])) == top1
    assert classifier.score(np.array(list(map(str, images.paths))), truth) == top1  # type: ignore[arg-type]
    assert log_loss(truth, probabilities, labels=classifier.classes_) == pytest.approx(expected["nll"], abs=1e-5)
    opened = classifier.predict_proba([decode(path) for path in images.paths])
    np.testing.assert_allclose(opened, probabilities, atol=1e-6)


def test_a_classifier_leaves_no_row_out(source_run: TrainRun, target_images: Path, tmp_path: Path) -> None:
    classifier, path = dept.Classifier.load(source_run.file, device="cpu"), find_images(target_images).paths[0]
    (tmp_path / "bad.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"bad.png cannot be read"):
        classifier.predict([path, tmp_path / "bad.png"])
    for wrong in ([], str(path), [path, decode(path)]):
        with pytest.raises(UsageError, match=r"A list of images is expected|either paths or pictures"):
            classifier.predict(wrong)

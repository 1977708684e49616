"""The models and images of a run, found again where it recorded them.

A run folder may come from anyone. Images that only the folder names are used if they are exactly its list of files.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from dept.data.images import ImageSet, decodable, find_images, find_labelled, list_hash
from dept.data.places import Place, as_place
from dept.data.sources import find_sources
from dept.errors import DataError, DeptError
from dept.models.files import apply_adapter, load_adapter, load_model
from dept.models.hub import WEIGHTS, is_reference, located
from dept.models.model import Model
from dept.runs.file_index import read_index
from dept.runs.read import RunFiles
from dept.runs.train import training_hash


class Missing(DataError):
    """Model or images were not found. The message says which, and which parameter helps."""


def models_of(
    run: RunFiles, *, model: str | PathLike[str] | None = None, device: str = "cpu"
) -> tuple[Model | None, Model]:
    """The models before (None for source training) and after, in eval mode on the device.

    Args:
        model: the source model, if it has moved since the run.
    """
    adapts = run.kind in ("adapt", "stream")
    written = run.adapter if adapts else run.model
    if written is None:
        raise Missing(f"The run has not written {'adapter' if adapts else 'model'}.safetensors yet.")
    after = None if adapts else load_model(written).to(device)
    if run.kind == "train" and after is not None:
        return None, after
    source = model or _place(run.inputs.get("model"), "model")
    try:
        before = load_model(source).to(device)
        after = after or apply_adapter(load_model(source), load_adapter(written, before)).to(device).eval()
    except DataError as error:
        if model is not None:
            raise
        raise Missing(f"{error} Pass the source model of the run as `model`.") from error
    return before, after


def images_of(
    run: RunFiles, model: Model, *, images: Path | None = None, score: Path | None = None, scored: bool = True
) -> tuple[ImageSet, bool | None]:
    """The images of a run, and whether they are its own list of files (None: it does not record one).

    Args:
        images, score: where to look instead; `score` is labelled.
        scored: take the labelled images that the run was scored on, where it has them, not those it adapted to.
    """
    if score is not None:
        found = find_labelled(score, model.classes)
    elif images is not None:
        found = find_images(images)
    elif run.kind == "train":
        found = _held_out(run, model)
    else:
        found = _streamed(run) if run.kind == "stream" else _recorded(run, model, scored)
    named = score is not None or images is not None
    # Python callers and `ratio` select among a folder's images. The run identifies its list only by the hash, which is
    # of the images that could be decoded.
    recorded = None if run.kind == "train" else run.protocol.get("list_sha256")
    if recorded is None:
        return found, True if run.kind == "train" and not named else None
    skipped = run.result.get("skipped") or run.result.get("skipped_scored")
    ours = list_hash(found)
    if skipped and ours != recorded:  # a large set is recorded as it was found
        ours = list_hash(decodable(found, channels=model.card.preprocess.channels, index=read_index(run.folder)))
    if not (named or recorded == ours or run.inputs.get("score_sha256") == ours):
        raise Missing(_foreign(found.root))
    return found, recorded == ours


def _held_out(run: RunFiles, model: Model) -> ImageSet:
    """The held-out images of a source training, split off its sources again."""
    recorded: list[str | None] = [*run.sources] or [None]
    places = [_place(place, "images") for place in recorded]
    names = run.protocol.get("domains")  # only for several sources
    try:
        given = dict(zip(names, places, strict=True)) if names else places[0]
        sources = find_sources(given, model.classes)
        if run.result.get("skipped"):
            sources = sources.decodable(model.card.preprocess.channels, read_index(run.folder))
        training, held_out = sources.split(run.protocol["config"]["held_out"], seed=run.protocol["seed"])
    except (DeptError, ValueError) as error:
        raise Missing(_foreign(places[0])) from error
    if training_hash(training) != run.protocol["list_sha256"]:
        raise Missing("The source images are not those of the run: the file list differs. Pass others as `images`.")
    if not all(map(_inside, sources.parts)):
        raise Missing(_foreign(places[0]))
    return held_out.union


def _streamed(run: RunFiles) -> ImageSet:
    """The images of a stream over a folder, if they are exactly those that are there."""
    place = _place(run.inputs.get("images"), "images")
    found = _found_at(find_images, place)
    there = {str(path.absolute()): path for path in found.paths}
    seen = {str(as_place(row["path"]).absolute()): "label" in row for row in run.predictions}
    if seen.keys() != there.keys():
        raise Missing(_foreign(place))
    return ImageSet(Path(), tuple(there[path] for path, good in seen.items() if good))


def _recorded(run: RunFiles, model: Model, scored: bool) -> ImageSet:
    """The images where the run found them."""
    name = "score" if scored and "score" in run.inputs else "images"
    place = _place(run.inputs.get(name), "images")
    return _found_at(lambda at: find_labelled(at, model.classes) if name == "score" else find_images(at), place)


def _found_at(find: Callable[[Path], ImageSet], place: Path) -> ImageSet:
    """Images below a place that a run folder names, which nobody else vouches for.

    No single image, nothing that a link or a list fetches from elsewhere, and no message that quotes a file: a run
    folder from somewhere else must not bring private pictures or text into a page that is passed on.
    """
    try:
        found = find(place)
    except (DeptError, OSError, ValueError) as error:
        raise Missing(_foreign(place)) from error
    if found.paths == (place,) or not _inside(found):
        raise Missing(_foreign(place))
    return found


def _inside(images: ImageSet) -> bool:
    root = images.root.resolve()
    return all(path.resolve().is_relative_to(root) for path in images.paths)


def _foreign(place: Place) -> str:
    return (
        f"The images in {place} are not the list of files that the run recorded, so they are left out. "
        "To measure on them, pass them as `images`."
    )


def _check_named_before(reference: str) -> None:
    """Refuse a model on the hub that was never fetched here: a run folder must not make us connect to anyone."""
    try:
        located(reference, WEIGHTS, cached=True)
    except DeptError as error:
        raise Missing(f"{reference}, the model of the run, was never fetched here. Pass it as `model`.") from error


def _place(recorded: str | None, what: str) -> Path:
    """Where an input is, by the path that the run recorded, if it still exists.

    Args:
        what: "model" or "images": the kind of input, and the parameter that names another place.
    """
    if recorded is None:
        raise Missing(f"The run does not record where its {what} came from. Pass `{what}`.")
    if is_reference(recorded):
        _check_named_before(recorded)
        return Path(recorded)
    try:
        there = Path(recorded).exists()
    except (OSError, ValueError):  # a name that no file can have
        there = False
    if not there:
        raise Missing(f"Not found: {recorded}, the {what} of the run. Pass the new place as `{what}`.")
    return Path(recorded)

"""Models on the Hugging Face hub, only when a user names one: hf-hub:USER/MODEL or hf-hub:USER/MODEL@REVISION."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from dept.errors import DataError, UsageError

SCHEME = "hf-hub:"
CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""in the order of preference"""
progress = logging.getLogger("dept.progress")
_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+))?")


def fetch(name: str) -> Path:
    """Download a model's settings and weights into the hub's cache; returns the folder that they are in."""
    match = _NAME.fullmatch(name.removeprefix(SCHEME))
    if not match:
        raise UsageError(f"A model on the hub is named {SCHEME}USER/MODEL or {SCHEME}USER/MODEL@REVISION, not {name}.")
    repo, revision = match[1], match[2]
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    progress.info("Fetching %s from the Hugging Face hub …", repo)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would print a line for every attempt

    def download(file: str) -> Path | None:
        """The file; None if the model has no such file."""
        try:
            return Path(hf_hub_download(repo, file, revision=revision))
        except LocalEntryNotFoundError:  # there is no connection, so nobody knows whether the file exists
            raise
        except EntryNotFoundError:
            return None

    try:
        config = download(CONFIG)
        weights = next((path for path in map(download, WEIGHTS) if path is not None), None)
        download(PROCESSOR)
    except Exception as error:  # the hub raises many types: no network, no such model, no permission, a full disk
        offline = isinstance(error, LocalEntryNotFoundError)
        reason = "no connection" if offline else (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{repo} could not be fetched from the Hugging Face hub ({reason}). Check the name and the network, or "
            "download its files elsewhere and give their folder."
        ) from error
    if config is None or weights is None:
        missing = CONFIG if config is None else " or ".join(WEIGHTS)
        raise DataError(f"{repo} on the Hugging Face hub has no {missing}, so it cannot be read.")
    return weights.parent

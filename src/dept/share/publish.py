"""Publishing: a folder with the file and its card, and the upload of such a folder to the Hugging Face hub."""

from __future__ import annotations

import tempfile
from pathlib import Path

from dept.errors import UsageError
from dept.io import check_folder, read_meta, write_atomic
from dept.models.hub import SCHEME, Reference, explained, parse
from dept.runs.read import REJECTED, RunFiles, read_run
from dept.share.card import model_card

CARD = "README.md"


def publish(run: str | Path, repo: str, *, to: str | Path | None = None, private: bool | None = None) -> str:
    """Publish the adapter or model of a run, with a card; returns the address, or the folder that was written.

    Args:
        repo: hf-hub:USER/REPO or hf-hub:USER/REPO@BRANCH.
        to: write the folder there, and upload nothing.
    """
    found, target = read_run(run), repository(repo)
    file = product(found)
    if to is not None:
        check_folder(Path(to), "to")
        write_folder(Path(to), file, found, target)
        return str(to)
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), file, found, target)
        return upload(Path(folder), target, private=private)


def repository(name: str) -> Reference:
    """The repository to publish to; a UsageError if it names a file, or is no reference."""
    found = parse(name)
    if found.file is not None:
        raise UsageError(f"Give the repository alone, {SCHEME}{found.repo}; {name} names a file in it.")
    return found


def product(run: RunFiles) -> Path:
    """The file of a run that others can use; an error if there is none, or if it does harm."""
    file = run.adapter or run.model
    if file is None:
        raise UsageError(f"{run.folder} has no adapter or model yet: the run has not finished.")
    if file.name == REJECTED or run.judged.get("verdict") == "harmful":
        raise UsageError(
            f"The adapter of {run.folder} counts as harmful and is not published. `dept report {run.folder}` says why. "
            "`dept adapt` with `accept` keeps such an adapter."
        )
    return file


def write_folder(folder: Path, file: Path, run: RunFiles, repo: Reference) -> None:
    """The files as they are published: the adapter or model, and the card."""
    write_atomic(folder / file.name, file.read_bytes())
    write_atomic(folder / CARD, model_card(read_meta(file), run, repo).encode(errors="backslashreplace"))


def upload(
    folder: Path,
    repo: Reference,
    *,
    message: str = "Upload by dept",
    private: bool | None = None,
    token: str | None = None,
    create_pr: bool | None = None,
) -> str:
    """Upload a folder, into a new repository if there is none; returns the address of the commit."""
    advice = "Log in with `hf auth login`, check the name and the network, or write the folder and upload it elsewhere."
    with explained(f"{repo.repo} could not be published on the Hugging Face hub", advice):
        from huggingface_hub.hf_api import HfApi

        api = HfApi(token=token)
        api.create_repo(repo_id=repo.repo, private=private, exist_ok=True)
        if repo.revision is not None and not create_pr:
            api.create_branch(repo_id=repo.repo, branch=repo.revision, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo.repo,
            folder_path=folder,
            commit_message=message,
            revision=repo.revision,
            create_pr=create_pr,
        )
    return str(done)

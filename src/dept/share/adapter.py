"""`dept.Adapter`: the tensors of a domain with their origin, as others publish and fetch them.

The names and their first arguments are those of huggingface_hub's `ModelHubMixin`. The mixin itself would write a
config.json that we have no use for (the metadata is in the file), and warn where there is none.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from dept.core import adapter as core
from dept.errors import UsageError
from dept.io import write_atomic
from dept.models.files import read_adapter, save_adapter
from dept.models.hub import SCHEME, is_reference
from dept.runs.read import RunFiles, read_run
from dept.share.card import model_card
from dept.share.publish import CARD, product, repository, upload

FILE = "adapter.safetensors"


@dataclass
class Adapter(core.Adapter):
    """An adapter that can be published. For what can be done with its tensors see `dept.core.adapter`."""

    run: RunFiles | None = field(default=None, repr=False)
    """the run that made it, if that is known: its verdict is in the card"""

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, revision: str | None = None, local_files_only: bool = False
    ) -> Adapter:
        """An adapter from a run folder, a folder that was published, or the hub (USER/REPO).

        Args:
            revision: branch, tag or commit on the hub.
            local_files_only: only take what was fetched earlier.
        """
        if Path(name).is_dir():
            read = read_adapter(Path(name) / FILE)
            return cls(read.tensors, read.meta, read_run(name) if (Path(name) / "result.json").is_file() else None)
        place = str(name) if is_reference(name) else f"{SCHEME}{name}"
        read = read_adapter(place if revision is None else f"{place}@{revision}", cached=local_files_only)
        return cls(read.tensors, read.meta)

    def save_pretrained(self, folder: str | Path, *, repo_id: str = "USER/REPO") -> Path:
        """Write the folder as it is published: adapter.safetensors and README.md, which says how to load it."""
        if "backbone_sha256" not in self.meta:
            raise UsageError(
                "This adapter does not say which model it belongs to. Publish one that a run has written: "
                "Adapter.from_pretrained(RUN)."
            )
        if self.run is not None:
            product(self.run)  # refuses one that does harm
        place = Path(folder)
        save_adapter(self, place / FILE)
        text = model_card(self.meta, self.run, repository(f"{SCHEME}{repo_id}"))
        write_atomic(place / CARD, text.encode(errors="backslashreplace"))
        return place

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Upload an adapter of dept",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
    ) -> str:
        """Publish it as USER/REPO on the Hugging Face hub; returns the address of the commit.

        Args:
            private: whether a new repository is private; None for the default of the account.
            token: by default that of `hf auth login`.
        """
        name = repo_id.removeprefix(SCHEME)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, repo_id=name)
            target = repository(f"{SCHEME}{name}")._replace(revision=branch)
            how = {"private": private, "create_pr": create_pr}
            return upload(Path(folder), target, message=commit_message, token=token, **how)

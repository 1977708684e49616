"""A Hugging Face hub that is a folder: USER/REPO/FILE below a root. No test connects to anything."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from dept.models import hub


class FakeHub:
    """What is asked of it goes to the folder, and is noted: `asked` (repo, file, revision), `uploads` (keywords)."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.online, self.cached = root, True, True
        self.asked: list[tuple[str, str, str | None]] = []
        self.uploads: list[dict[str, Any]] = []
        self.forget()
        patch.setattr(huggingface_hub, "hf_hub_download", self.download)
        patch.setattr("huggingface_hub.hf_api.HfApi", lambda **given: self)

    def forget(self) -> None:
        """As a new process: nothing has been fetched in it."""
        hub._fetched.cache_clear()

    def download(
        self, repo_id: str, filename: str, *, revision: str | None = None, local_files_only: bool = False, **_: Any
    ) -> str:
        self.asked.append((repo_id, filename, revision))
        if not self.online or (local_files_only and not self.cached):
            raise LocalEntryNotFoundError("some lines\nand more")
        if not (self.root / repo_id / filename).is_file():
            raise EntryNotFoundError(filename)
        return str(self.root / repo_id / filename)

    def create_repo(self, repo_id: str, **given: Any) -> Any:
        self.uploads.append({"created": repo_id, **given})
        return type("RepoUrl", (), {"repo_id": repo_id})

    def create_branch(self, **given: Any) -> None:
        self.uploads.append(given)

    def upload_folder(self, *, repo_id: str, folder_path: Path, **given: Any) -> str:
        self.uploads.append({"repo_id": repo_id, **given})
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return f"https://hub.example/{repo_id}/commit/1"

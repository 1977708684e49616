"""Images behind an address (s3://, gs://, hf://, …) through fsspec, which is an extra."""

from __future__ import annotations

import hashlib
from typing import IO, Any

from dept.data.places import State, Url
from dept.errors import DataError, DeptError, UsageError, missing_extra

PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "az": "adlfs",
            "abfs": "adlfs", "http": "aiohttp", "https": "aiohttp"}  # fmt: skip
"""what fsspec needs for some kinds of storage"""


def names_below(url: Url) -> list[str] | None:
    """Names of all objects below an address, relative to it; None if the address is that of one object."""
    try:
        system, path = _opened(url)
        found: list[str] = system.find(path)
    except DeptError:
        raise
    except Exception as error:  # of any of a dozen libraries; what went wrong is what matters
        raise DataError(
            f"{url} cannot be listed ({_said(error)}). Check the address, and your rights to read it."
        ) from error
    if not found:
        raise DataError(f"{url} does not exist, or holds nothing.")
    if found == [path]:
        return None
    start = path.rstrip("/") + "/"
    return [name.removeprefix(start) for name in found]


def open_url(url: Url) -> IO[bytes]:
    """An object as a file."""
    system, path = _opened(url)
    file: IO[bytes] = system.open(path, "rb")
    return file


def read_url(url: Url, start: int, end: int) -> bytes:
    """Some bytes of an object, in one request where the storage can do that."""
    system, path = _opened(url)
    data: bytes = system.cat_file(path, start=start, end=end)
    return data


def url_state(url: Url) -> State | None:
    """Size of an object, and a number that a change of it changes; None if it is not there."""
    system, path = _opened(url)
    try:
        size = int(system.info(path).get("size") or 0)
        mark = hashlib.sha256(str(system.ukey(path)).encode()).digest()
    except OSError:
        return None
    return size, int.from_bytes(mark[:7], "big")  # fits into 64 bits with a sign


def _opened(url: Url) -> tuple[Any, str]:
    """The file system of an address, and the path in it. Asked for every time: it must not outlive a fork."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise missing_extra("fsspec", "remote") from error
    try:
        system, path = url_to_fs(str(url))
    except ImportError as error:
        scheme = str(url).partition("://")[0].rpartition(":")[2]
        package = PACKAGES.get(scheme, f"the package for {scheme}://")
        raise UsageError(f"{scheme}:// needs one package more: pip install {package}") from error
    except ValueError as error:
        raise UsageError(f"{url} is not an address that fsspec knows ({_said(error)}).") from error
    return system, path


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]

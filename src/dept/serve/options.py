"""How a server runs. Plain data, checked once; the command line makes its flags from it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from dept.errors import UsageError

MB = 1_000_000


@dataclass(frozen=True)
class ServeOptions:
    """How a server runs."""

    host: str = "127.0.0.1"
    """address to listen on"""
    port: int = 8000
    """port to listen on"""
    token_file: Path | None = None
    """access tokens, made with `dept token`"""
    no_auth: bool = False
    """serve without tokens; only on a loopback address"""
    workers: int = 1
    """server processes; each holds the backbone"""
    device: str = "auto"
    """cpu, cuda, mps or auto"""
    amp: bool = False
    """predict in bf16: faster where the hardware has it, and a little less exact"""
    batch: int = 32
    """images per forward pass, at most"""
    wait_ms: float = 5.0
    """time that the first image of a batch waits for others"""
    queue: int = 256
    """images that are accepted and not yet predicted; more are refused with 429"""
    deadline_ms: int = 10_000
    """time after which a request that was not predicted is given up; a request may ask for less"""
    decoders: int = 2
    """threads that decode images"""
    max_images: int = 64
    """images per prediction request"""
    max_body_mb: int = 64
    """size of a prediction request"""
    max_upload_mb: int = 2_000
    """size of an uploaded adapter, or of the images of an adaptation"""
    max_megapixels: float = 40.0
    """pixels of one image"""
    rate: float = 200.0
    """requests per second and token, with bursts of twice as many; 0 for no limit"""
    allow_folder: tuple[Path, ...] = ()
    """folders below which an adaptation may read images on the server"""
    jobs: int = 1
    """adaptations that run at the same time"""
    learners: int = 4
    """domains that adapt online at the same time"""
    publish_every: int = 20
    """updates after which an online adapter is compared and, if it does no harm, published"""
    thumbnails: int = 12
    """latest images per domain that the dashboard shows, kept in memory only; 0 for none"""
    keep_versions: int = 20
    """versions per domain that are kept beside the active one"""
    poll: float = 0.5
    """seconds between two looks at changes that other processes made"""

    def __post_init__(self) -> None:
        least = {"workers": 1, "batch": 1, "queue": 1, "deadline_ms": 1, "decoders": 1, "max_images": 1, "jobs": 1}
        least |= {"max_body_mb": 1, "max_upload_mb": 1, "keep_versions": 1, "publish_every": 1, "thumbnails": 0}
        least |= {"learners": 0, "port": 1}
        for name, limit in least.items():
            if getattr(self, name) < limit:
                raise UsageError(f"`{name}` must be at least {limit}, found {getattr(self, name)}.")
        if self.port > 65_535:
            raise UsageError(f"`port` must be at most 65535, found {self.port}.")
        if not (self.wait_ms >= 0 and self.rate >= 0 and self.max_megapixels > 0 and 0 < self.poll <= 1):
            raise UsageError("`wait_ms` and `rate` must be at least 0, `max_megapixels` above 0, `poll` up to 1.")
        self._check_access()

    def _check_access(self) -> None:
        if self.no_auth and self.token_file is not None:
            raise UsageError("`no_auth` and `token_file` contradict each other. Give one of them.")
        if not self.no_auth and self.token_file is None:
            raise UsageError(
                "Who may use the server? Make a token with `dept token NAME --role operate --file tokens.txt` and give "
                "that file as `token_file`. On a machine of your own, `no_auth` serves without tokens on loopback."
            )
        if self.no_auth and not is_loopback(self.host):
            raise UsageError(f"`no_auth` is for loopback addresses such as 127.0.0.1; `host` is {self.host}.")

    @property
    def max_pixels(self) -> int:
        """Of one image."""
        return int(self.max_megapixels * 1_000_000)


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may mean anything
        return False

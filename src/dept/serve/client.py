"""A client of `dept serve` in plain Python: the standard library is all it needs.

>>> client = Client("http://127.0.0.1:8000", token="…")
>>> client.predict("a.jpg", "b.jpg", domain="site_a")
"""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from dept.errors import DeptError

Picture = str | Path | bytes
"""a file, or the content of one"""


class Refused(DeptError):
    """An answer of the server that is not a success."""

    def __init__(self, status: int, detail: str, retry_after: float | None) -> None:
        super().__init__(f"{status}: {detail}")
        self.status, self.detail, self.retry_after = status, detail, retry_after


class Client:
    """One connection to a server, kept open. For one thread at a time."""

    def __init__(self, url: str = "http://127.0.0.1:8000", token: str | None = None, *, timeout: float = 60) -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=timeout)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def predict(self, *images: Picture, domain: str | None = None, topk: int = 5) -> list[dict[str, Any]]:
        """One dict per image: label, confidence, topk, domain, version, new_domain; or error."""
        asked = {"topk": topk} | ({} if domain is None else {"domain": domain})
        body, kind = _form({}, [("images", _name(image), _content(image)) for image in images])
        rows: list[dict[str, Any]] = self.call("POST", f"/v1/predict?{urlencode(asked)}", body, kind)["predictions"]
        return rows

    def domains(self) -> list[dict[str, Any]]:
        """All domains as they are served now."""
        found: list[dict[str, Any]] = self.call("GET", "/v1/domains")
        return found

    def upload(self, domain: str, adapter: Picture, *, note: str = "", activate: bool = True) -> dict[str, Any]:
        """Add an adapter as the next version of a domain, and serve it."""
        fields = {"note": note, "activate": str(activate).lower()}
        body, kind = _form(fields, [("adapter", "adapter.safetensors", _content(adapter))])
        return dict(self.call("POST", f"/v1/domains/{quote(domain, safe='')}/versions", body, kind))

    def activate(self, domain: str, version: int, *, force: bool = False) -> dict[str, Any]:
        """Serve a version of a domain; 0 is the source model."""
        return dict(self._put("POST", domain, "activate", {"version": version, "force": force}))

    def roll_back(self, domain: str) -> dict[str, Any]:
        """Serve what was served before."""
        return dict(self._put("POST", domain, "rollback", {}))

    def online(self, domain: str, mode: str, method: str = "dept") -> dict[str, Any]:
        """Adapt a domain to its traffic: off, shadow or on."""
        return dict(self._put("PUT", domain, "online", {"mode": mode, "method": method}))

    def adapt(self, domain: str, images: Sequence[Picture] = (), **fields: Any) -> dict[str, Any]:
        """Start an adaptation to images, or to a `folder` on the server; `method`, `promote`, `max_iters`."""
        texts = {"domain": domain} | {name: str(value) for name, value in fields.items()}
        body, kind = _form(texts, [("images", _name(image), _content(image)) for image in images])
        return dict(self.call("POST", "/v1/jobs", body, kind))

    def wait(self, job: str, *, seconds: float = 3600, poll: float = 0.5) -> dict[str, Any]:
        """The adaptation when it has ended; a DeptError if that takes too long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = dict(self.call("GET", f"/v1/jobs/{quote(job, safe='')}"))
            if found["state"] in ("finished", "failed", "cancelled"):
                return found
            time.sleep(poll)
        raise DeptError(f"Job {job} has not ended within {seconds:g} s.")

    def call(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
        """The answer of any route: JSON as it is, text otherwise; Refused if it is not a success."""
        headers = self._headers | ({"Content-Type": kind} if body is not None else {})
        opened = self._connection.sock
        if opened is not None and connection.wait([opened], 0):
            self._connection.close()  # the server has, after some seconds without a request; `request` opens a new one
        try:
            self._connection.request(method, path, body, headers)
            response = self._connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()  # the next call begins with a new one
            raise DeptError(f"The server cannot be reached: {error!r}.") from error
        said = response.getheader("content-type", "").startswith("application/json")
        answer = json.loads(data) if said and data else data.decode(errors="replace")
        if response.status >= 300:
            after = response.getheader("retry-after")
            detail = answer.get("detail", "") if isinstance(answer, dict) else answer
            raise Refused(response.status, str(detail), float(after) if after else None)
        return answer

    def _put(self, method: str, domain: str, what: str, value: Mapping[str, Any]) -> Any:
        return self.call(method, f"/v1/domains/{quote(domain, safe='')}/{what}", json.dumps(value).encode())

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def _name(image: Picture) -> str:
    return "image" if isinstance(image, bytes) else Path(image).name


def _content(image: Picture) -> bytes:
    return image if isinstance(image, bytes) else Path(image).read_bytes()


def _form(fields: Mapping[str, str], files: Sequence[tuple[str, str, bytes]]) -> tuple[bytes, str]:
    """A multipart body and its content type, of fields and (field, name, content)."""
    boundary = secrets.token_hex(16)
    parts = [f'name="{name}"\r\n\r\n'.encode() + value.encode() for name, value in fields.items()]
    for field, name, content in files:
        # Quotes and line ends in a name would end the header.
        plain = quote(name, safe=" ()[]{}+,;=@~!$&'")
        head = f'name="{field}"; filename="{plain}"\r\nContent-Type: application/octet-stream\r\n\r\n'
        parts.append(head.encode() + content)
    start = f"--{boundary}\r\nContent-Disposition: form-data; ".encode()
    body = b"".join(start + part + b"\r\n" for part in parts) + f"--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"

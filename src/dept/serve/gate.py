"""What every request passes before anything of it is read: who sends it, how often, from where, how large it is."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dept.serve.dashboard import PARTS
from dept.serve.options import MB, ServeOptions, is_loopback
from dept.serve.tokens import LOCAL, Caller, Tokens

PUBLIC = {("GET", path) for path in (*PARTS, "/live", "/ready", "/openapi.json")}
PREDICT = {("POST", "/v1/predict"), ("GET", "/v1/server"), ("GET", "/metrics")}
"""what the role predict may do. Everything else needs operate, new routes included"""
BODY_SECONDS = 60.0
"""time in which a request must have sent its body"""
SMALL_BODY = 1 * MB
"""of requests that carry settings only"""
AT_ONCE = 16
"""prediction requests of the largest size whose bodies may be in memory at the same time"""
MOST_CALLERS = 10_000
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}


class Buckets:
    """Requests per second of each caller: a bucket of 2 · rate tokens that fills at `rate` per second."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self._clock = rate, clock
        self._held: dict[str, tuple[float, float]] = {}

    def wait(self, caller: str) -> float:
        """0 if the caller may go on now, else seconds until it may."""
        if not self.rate:
            return 0.0
        now, size = self._clock(), max(1.0, 2 * self.rate)
        level, at = self._held.pop(caller, (size, now))  # the last one used is the last one dropped
        level = min(size, level + (now - at) * self.rate)
        allowed = level >= 1
        self._held[caller] = (level - 1 if allowed else level, now)
        if len(self._held) > MOST_CALLERS:
            del self._held[next(iter(self._held))]
        return 0.0 if allowed else (1 - level) / self.rate


@dataclass(frozen=True)
class Refusal(Exception):
    """A request that is answered without being read."""

    status: int
    detail: str
    headers: tuple[tuple[str, str], ...] = ()


class Gate:
    """ASGI middleware. Puts the caller into the state of the request, or answers by itself.

    Args:
        tokens: None for a server that anybody on this machine may use.
        counted: told of every answer: the pattern of its route, which has few values, and the status.
    """

    def __init__(
        self, app: ASGIApp, options: ServeOptions, tokens: Tokens | None, counted: Callable[[str, int], None]
    ) -> None:
        self.app, self.options, self.tokens, self.counted = app, options, tokens, counted
        self.buckets = Buckets(options.rate)
        self.strangers = Buckets(min(options.rate, 10.0) or 10.0)
        self._held = 0  # bytes of bodies that are being read or predicted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            scope.setdefault("state", {})["caller"] = self._admit(scope)
            largest = self._largest(scope)
            size = _said_length(Headers(scope=scope), largest)
            if scope["path"] != "/v1/predict":
                size = 0  # of no account: uploads go to the disk
            self._check_room(size)
        except Refusal as refusal:
            self.counted("refused", refusal.status)
            await _reply(send, refusal)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.counted(getattr(scope.get("route"), "path", "none"), message["status"])
                given = {name.lower() for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in given)]
            await send(message)

        self._held += size
        try:
            await self.app(scope, _Limited(receive, largest), sending)
        finally:
            self._held -= size

    def _admit(self, scope: Scope) -> Caller:
        headers, place = Headers(scope=scope), (scope["method"], scope["path"])
        self._check_origin(scope, headers)
        if place in PUBLIC:
            return Caller("public", "predict")
        address = scope["client"][0] if scope.get("client") else ""
        caller = LOCAL if self.tokens is None else self._known(headers, self.tokens, address)
        if caller.role != "operate" and place not in PREDICT:
            raise Refusal(403, f"The token of {caller.name} has the role {caller.role}; this needs operate.")
        self._check_rate(self.buckets, caller.name)
        return caller

    def _known(self, headers: Headers, tokens: Tokens, address: str) -> Caller:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        caller = tokens.caller(token.strip()) if scheme.lower() == "bearer" and token else None
        if caller is None:
            self._check_rate(self.strangers, address)
            needed = (("www-authenticate", "Bearer"),)
            raise Refusal(401, "A token is needed: Authorization: Bearer TOKEN.", needed)
        return caller

    def _check_rate(self, buckets: Buckets, caller: str) -> None:
        if seconds := buckets.wait(caller):
            after = str(max(1, math.ceil(seconds)))
            raise Refusal(429, f"Too many requests. Try again in {after} s.", (("retry-after", after),))

    def _check_room(self, size: int) -> None:
        """Many clients that send large bodies slowly must not fill the memory."""
        if size and self._held + size > AT_ONCE * self.options.max_body_mb * MB:
            raise Refusal(429, "Too many large requests at once. Try again in 1 s.", (("retry-after", "1"),))

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Refuse what another web page makes a browser send. A server without tokens has no other protection."""
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            name, page = urlsplit(f"//{host}").hostname or "", urlsplit(origin or "").netloc
        except ValueError as error:  # a bracket that does not close
            raise Refusal(400, "The header Host or Origin cannot be understood.") from error
        if self.tokens is None and not is_loopback(name):
            raise Refusal(403, "Without tokens the server answers only to a loopback name, such as 127.0.0.1.")
        if origin is not None and page != host:
            raise Refusal(403, "Requests of other web pages are refused.")

    def _largest(self, scope: Scope) -> int:
        path, options = scope["path"], self.options
        if path == "/v1/predict":
            return options.max_body_mb * MB
        return options.max_upload_mb * MB if path.endswith(("/versions", "/jobs")) else SMALL_BODY


class _Limited:
    """A body that may have so many bytes, and take so long."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._most, self._seen, self._done = receive, most, 0, False
        self._until = time.monotonic() + BODY_SECONDS

    async def __call__(self) -> Message:
        if self._done:  # what comes now is the end of the connection, for which one may wait
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._until - time.monotonic()))
        except TimeoutError as error:
            raise HTTPException(408, f"The body did not arrive within {BODY_SECONDS:.0f} s.") from error
        self._seen += len(message.get("body", b""))
        if self._seen > self._most:
            raise HTTPException(413, _too_large(self._most))
        self._done = not message.get("more_body", False)
        return message


def _said_length(headers: Headers, most: int) -> int:
    """The size that a body says itself that it has, or else the largest; refused if that is too much."""
    if "transfer-encoding" in headers:
        return most
    said = headers.get("content-length", "0")
    if not said.isdecimal() or int(said) > most:
        raise Refusal(413, _too_large(most))
    return int(said)


def _too_large(most: int) -> str:
    return f"The request is too large: at most {most / MB:g} MB are accepted here."


async def _reply(send: Send, refusal: Refusal) -> None:
    """The body of the request was not read, so the connection is not used again."""
    body = json.dumps({"detail": refusal.detail}).encode()
    headers: dict[str, Any] = {"content-type": "application/json", "content-length": str(len(body))}
    headers |= {"connection": "close", **HEADERS, **dict(refusal.headers)}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})

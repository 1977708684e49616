"""The dashboard: a page, its style and its scripts, which a browser gets as they lie in this folder. No build step."""

from __future__ import annotations

from importlib.resources import files

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types"
)
"""By it a browser runs the scripts of this server alone and talks to it alone. The last two make every attempt to turn
a string into HTML an error, so names of classes and files stay text even if a script had a mistake."""


def _read() -> dict[str, tuple[bytes, str]]:
    found = {}
    for file in files(__name__).iterdir():
        kind = TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            found["/" if file.name == "index.html" else f"/dashboard/{file.name}"] = (file.read_bytes(), kind)
    return found


PARTS = _read()
"""path of a request -> (content, type). Nothing else can be asked for"""

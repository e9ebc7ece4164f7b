"""The files of the page at `/`: HTML, style, scripts and icon as they lie in `static`. They hold nothing of the fleet,
so everybody may have them; what the page shows comes by its stream, for readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType

_HOME = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing from elsewhere, nothing inline; and a browser that knows trusted types refuses to make markup of text."""

PAGE_HEADERS: Mapping[str, str] = MappingProxyType({"Content-Security-Policy": _POLICY})


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, as it is sent."""

    content_type: str
    content: bytes


@cache
def page_version() -> str:
    """Return a name of these files: the same for the same ones."""
    digest = sha256()
    for path, file in sorted(page_files().items()):
        digest.update(path.encode() + file.content)
    return digest.hexdigest()[:16]


@cache
def page_files() -> Mapping[str, PageFile]:
    """Return the files by path; the page itself is at `/`."""
    found = {}
    for each in files(__package__).joinpath("static").iterdir():
        content_type = _TYPES.get(each.name[each.name.rfind(".") :])
        if content_type is not None:
            found["/" if each.name == _HOME else f"/{each.name}"] = PageFile(content_type, each.read_bytes())
    return MappingProxyType(found)

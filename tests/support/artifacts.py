"""What tests that look at something keep for people: pictures and texts in build/screenshots/, which is not in
git. `CAGRPC_SCREENSHOTS=1` makes those of the documentation anew."""

from __future__ import annotations

from pathlib import Path

KEPT = Path(__file__).resolve().parents[2] / "build" / "screenshots"


def kept(name: str) -> Path:
    """Return where a file of this name is kept; what was there is written over."""
    KEPT.mkdir(parents=True, exist_ok=True)
    return KEPT / name

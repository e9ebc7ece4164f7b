"""The episodes that are kept, as values and as the text that outlives the process: bounded, whatever happened. The
state that an episode was planned from is kept with it as long as there is room: it can then be planned again."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cagrpc.controllers.episodes.model import Episode, RecordedState, sentences

KEPT_EPISODES = 300
MOST_BYTES = 800_000
"""Of the text: a ConfigMap has a mebibyte."""
MOST_STATE_BYTES = 20_000_000
"""Of a recorded state, as it was before it was compressed."""


@dataclass(frozen=True, slots=True)
class KeptEpisode:
    """An episode, and its state in the form in which it is kept; empty where there was no room."""

    episode: Episode
    state: str = ""

    def recorded(self) -> RecordedState | None:
        """Return the state; None where it is not kept, or cannot be read."""
        try:
            read = zlib.decompressobj()
            text = read.decompress(base64.b64decode(self.state), MOST_STATE_BYTES)
            return _states().validate_json(text) if text and read.eof else None
        except (ValueError, zlib.error, binascii.Error):
            return None


def kept(episode: Episode, state: RecordedState) -> KeptEpisode:
    text = json.dumps(_plain(_states().dump_python(state, mode="json", exclude_defaults=True)), separators=(",", ":"))
    return KeptEpisode(episode, base64.b64encode(zlib.compress(text.encode(), 9)).decode())


class EpisodeLog:
    """The last episodes, oldest first. Thread-safe."""

    def __init__(self) -> None:
        self._kept: tuple[KeptEpisode, ...] = ()
        self._lock = Lock()

    def add(self, *found: KeptEpisode) -> None:
        """Take episodes in. There is one at a time: of those that overlap, the one that is there stays."""
        with self._lock:
            for each in found:
                if not any(_overlap(each.episode, other.episode) for other in self._kept):
                    self._kept = (*self._kept, each)
            ordered = sorted(self._kept, key=lambda each: each.episode.opened_at_seconds)
            self._kept = tuple(_bounded(ordered[-KEPT_EPISODES:]))

    def latest(self) -> tuple[KeptEpisode, ...]:
        with self._lock:
            return self._kept

    def text(self) -> str:
        """Return what is written."""
        return _text(self.latest())

    def restore(self, text: str) -> None:
        """Take in what was written, with that of others; what is not readable is left out."""
        self.add(*read(text))


def read(text: str) -> Iterator[KeptEpisode]:
    """Yield the episodes of a text that `EpisodeLog` wrote; what is no episode is left out."""
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return
    for each in found if isinstance(found, list) else ():
        state = each.get("state") if isinstance(each, dict) else None
        try:
            yield KeptEpisode(_episodes().validate_python(each["episode"]), state if isinstance(state, str) else "")
        except (KeyError, TypeError, ValidationError):
            continue


def as_json(episode: Episode) -> dict[str, Any]:
    """Return an episode as `/episodes` shows it."""
    plain: dict[str, Any] = _episodes().dump_python(episode, mode="json")
    for side, of in (("came", episode.came), ("planned", episode.planned)):
        if of is not None:
            plain[side] |= {"usd_per_hour": of.usd_per_hour, "node_count": of.node_count}
    return {
        **plain,
        "better": episode.better.value,
        "saving_usd_per_hour": episode.saving_usd_per_hour,
        "said": list(sentences(episode)),
    }


def _text(found: Iterable[KeptEpisode]) -> str:
    return json.dumps(
        [{"episode": _episodes().dump_python(each.episode, mode="json"), "state": each.state} for each in found],
        separators=(",", ":"),
    )


def _bounded(found: list[KeptEpisode]) -> list[KeptEpisode]:
    """Return the episodes without the oldest states, then without the oldest of them, until they have room."""
    sizes = [len(_text([each])) for each in found]
    for number, each in enumerate(found):
        if sum(sizes) <= MOST_BYTES:
            break
        found[number] = KeptEpisode(each.episode)
        sizes[number] -= len(each.state)
    while sum(sizes) > MOST_BYTES:
        del found[0], sizes[0]
    return found


def _overlap(one: Episode, other: Episode) -> bool:
    return one.opened_at_seconds < other.closed_at_seconds and other.opened_at_seconds < one.closed_at_seconds


def _plain(value: Any) -> Any:
    """Return plain data without what values remember for themselves, which is of this process alone."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if not key.startswith("_")}
    return [_plain(each) for each in value] if isinstance(value, list) else value


@cache
def _episodes() -> TypeAdapter[Episode]:
    return TypeAdapter(Episode)


@cache
def _states() -> TypeAdapter[RecordedState]:
    return TypeAdapter(RecordedState)

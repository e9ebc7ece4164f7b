"""JSON lists of Kubernetes objects, as kubectl and the API server write them, read object by object, however large they
are."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any, BinaryIO

from cagrpc.api.files.strict import JSONDecoder
from cagrpc.errors import shown

_CHUNK_BYTES = 4 * 1024 * 1024


def items(file: BinaryIO) -> Iterator[tuple[str, Any, list[str]]]:
    """Yield the items of one v1.List or PodList, each with the kind of the list as far as it was said before and with
    the keys that it has twice, with at most a few megabytes of text at a time. Raises ValueError for anything else."""
    text = _Text(file)
    text.expect("{")
    kind, empty = "", text.accept("}")
    names: list[Any] = []
    while not empty:
        name = text.value()
        if name in names:
            raise ValueError(f"duplicate key {shown(name)}")
        names.append(name)
        text.expect(":")
        if name == "items":
            yield from ((kind, each, text.json.duplicates(each)) for each in _values(text))
        else:
            found = text.value()
            kind = found if name == "kind" and isinstance(found, str) else kind
        if text.accept("}"):
            break
        text.expect(",")


def _values(text: _Text) -> Iterator[Any]:
    text.expect("[")
    empty = text.accept("]")
    while not empty:
        yield text.value()
        if text.accept("]"):
            return
        text.expect(",")


class _Text:
    """JSON as it is read, value by value."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self.json = JSONDecoder()
        self._buffer = ""
        self._at = 0
        self._ended = False

    def value(self) -> Any:
        """Return the value that comes next."""
        while True:
            self._skip()
            try:
                found, end = self.json.raw_decode(self._buffer, self._at)
            except ValueError:
                if not self._more():
                    raise
                continue
            if end == len(self._buffer) and self._more():
                continue  # a number may go on
            self._at = end
            return found

    def expect(self, character: str) -> None:
        if not self.accept(character):
            found = self._buffer[self._at : self._at + 20]
            raise ValueError(f"expected {shown(character)}, found {shown(found)}")

    def accept(self, character: str) -> bool:
        self._skip()
        if self._buffer[self._at : self._at + 1] != character:
            return False
        self._at += 1
        return True

    def _skip(self) -> None:
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._buffer) or not self._more():
                return

    def _more(self) -> bool:
        """Read on; return whether there was anything."""
        if self._ended:
            return False
        data = self._file.read(_CHUNK_BYTES)
        self._ended = not data
        self._buffer = self._buffer[self._at :] + self._decode.decode(data, final=self._ended)
        self._at = 0
        return not self._ended

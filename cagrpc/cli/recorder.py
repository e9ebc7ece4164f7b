"""`cagrpc serve --record FILE`: every call of a cluster-autoscaler with its answer, in the format that `cagrpc replay`
reads (`recording`)."""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock

from cagrpc.cli.output import writing
from cagrpc.cli.recording import SUFFIX
from cagrpc.errors import InvalidInput
from cagrpc.services.status import Call, Method, status_of


class Recorder:
    """A recording that is being made. Thread-safe; whole only once it is closed."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Raises InvalidInput where there is a file already, or none can be."""
        if not path.name.endswith(SUFFIX):
            raise InvalidInput(f"--record: found {path}, expected a name that ends in {SUFFIX}")
        try:
            self._file = gzip.open(path, "xt", encoding="ascii")  # noqa: SIM115 - open for as long as the server
        except OSError as error:
            raise InvalidInput(f"--record {path}: {error.strerror}; give a file that can be made") from error
        self._monotonic = monotonic
        self._started = monotonic()
        self._lock = Lock()
        self._closed = False

    def recorded(self, methods: Mapping[str, Method]) -> dict[str, Method]:
        """The same methods, each call of which is written down."""
        return {name: self._recorded(name, method) for name, method in methods.items()}

    def close(self) -> None:
        """May be repeated."""
        with self._lock:
            if not self._closed:
                self._closed = True
                with writing():
                    self._file.close()

    def _recorded(self, name: str, method: Method) -> Method:
        def with_record(data: bytes, call: Call) -> bytes:
            seconds, code, answer = self._monotonic() - self._started, "OK", b""
            try:
                answer = method(data, call)
            except Exception as error:
                code = status_of(error)[0].name
                raise
            finally:
                self._write(seconds, name, data, code, answer)
            return answer

        return with_record

    def _write(self, seconds: float, method: str, request: bytes, code: str, response: bytes) -> None:
        line = {
            "seconds": round(seconds, 3),
            "method": method,
            "request": base64.b64encode(request).decode(),
            "code": code,
            "response": base64.b64encode(response).decode(),
        }
        with self._lock:
            if not self._closed:
                self._file.write(json.dumps(line) + "\n")

"""`cagrpc serve --record FILE`: records every call of a cluster-autoscaler with its response, in the format that
`cagrpc replay` reads (`recording`). Pods and nodes are reduced to what planning reads."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock

from cagrpc.api.autoscaler.expander import reduced
from cagrpc.errors import InvalidInput, reason_of
from cagrpc.output import writing
from cagrpc.replay.recording import SUFFIX, request_type
from cagrpc.services.grpc.status import CallContext, Method, status_of

log = logging.getLogger(__name__)

MOST_BYTES = 256 * 1024 * 1024
"""Of the file; recording stops there."""


class Recorder:
    """A recording in progress. Thread-safe; the file is complete only once closed."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Create the file. Raises InvalidInput where it exists or cannot be created."""
        if not path.name.endswith(SUFFIX):
            raise InvalidInput(f"--record: found {path}, expected a name that ends in {SUFFIX}")
        try:
            # Readable by its owner only: it shows what runs in the cluster.
            self._raw = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        except OSError as error:
            raise InvalidInput(
                f"--record {path}: {reason_of(error)}; name a new file in a writable directory"
            ) from error
        self._file = gzip.GzipFile(fileobj=self._raw, mode="wb")
        self._path = path
        self._monotonic = monotonic
        self._started = monotonic()
        self._lock = Lock()
        self._closed = False

    def recorded(self, methods: Mapping[str, Method]) -> dict[str, Method]:
        """Return the methods, wrapped to record each call."""
        return {name: self._recorded(name, method) for name, method in methods.items()}

    def close(self) -> None:
        """Complete the file. Idempotent."""
        with self._lock, writing():
            self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            with self._raw:
                self._file.close()

    def _recorded(self, name: str, method: Method) -> Method:
        def with_record(data: bytes, call: CallContext) -> bytes:
            seconds, code, answer = self._monotonic() - self._started, "OK", b""
            try:
                answer = method(data, call)
            except Exception as error:
                code = status_of(error)[0].name
                raise
            finally:
                if not self._closed:
                    self._write(seconds, name, data, code, answer)
            return answer

        return with_record

    def _write(self, seconds: float, method: str, request: bytes, code: str, response: bytes) -> None:
        try:
            known = reduced(request_type(method), request)
        except InvalidInput:
            return  # malformed bytes may hold secrets, and no autoscaler sends them
        document = {
            "seconds": round(seconds, 3),
            "method": method,
            "request": base64.b64encode(known).decode(),
            "code": code,
            "response": base64.b64encode(response).decode(),
        }
        line = f"{json.dumps(document)}\n".encode()
        with self._lock:
            if self._closed:
                return
            try:
                if self._raw.tell() + len(line) > MOST_BYTES:
                    self._stop(f"it would have more than {MOST_BYTES} bytes")
                else:
                    self._file.write(line)
            except OSError as error:
                self._stop(reason_of(error))

    def _stop(self, why: str) -> None:
        log.warning("--record %s: recording stopped: %s", self._path, why)
        try:
            self._close()
        except OSError as error:
            log.warning("--record %s: its end is missing: %s", self._path, reason_of(error))

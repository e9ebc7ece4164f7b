"""Recorded conversations: the `.jsonl.gz` format (one RPC a line: seconds, method, request, code, response; protobuf in
base64) and those that are embedded in cagrpc. They are replayed in `conversation`."""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import zlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from cagrpc.api.gen import expander_pb2, externalgrpc_pb2
from cagrpc.errors import InvalidInput, reason_of, shown

SUFFIX = ".jsonl.gz"
_EMBEDDED = files("cagrpc.data") / "recordings"
PROVIDER = externalgrpc_pb2.DESCRIPTOR.services_by_name["CloudProvider"]
EXPANDER = expander_pb2.DESCRIPTOR.services_by_name["Expander"]
BEST_OPTIONS = "BestOptions"
CODES = frozenset(code.name for code in grpc.StatusCode)
METHODS = frozenset({*PROVIDER.methods_by_name, *EXPANDER.methods_by_name})


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded RPC. `line` counts from 1; `code` is a gRPC status by name; `response` is empty unless it is OK."""

    line: int
    seconds: float
    method: str
    request: bytes
    code: str
    response: bytes

    @property
    def full_method(self) -> str:
        """Return the path by which gRPC calls it."""
        service = EXPANDER if self.method in EXPANDER.methods_by_name else PROVIDER
        return f"/{service.full_name}/{self.method}"


def request_type(method: str) -> type[Message]:
    """Return the request message of one of `METHODS`."""
    found = {**PROVIDER.methods_by_name, **EXPANDER.methods_by_name}[method]
    kind: type[Message] = GetMessageClass(found.input_type)
    return kind


def read_recording(name: str) -> tuple[Call, ...]:
    """Return the calls of the file `name`, or of the embedded recording of that name. Raises InvalidInput with every
    invalid line."""
    problems: list[str] = []
    calls = []
    for number, line in enumerate(_text(name).splitlines(), start=1):
        try:
            calls.append(_call(number, json.loads(line)))
        except (ValueError, KeyError, TypeError, binascii.Error) as error:
            problems.append(f"{name}: line {number}: is not a recorded RPC: {_words(error)}")
    if problems:
        raise InvalidInput("\n".join(problems))
    if not calls:
        raise InvalidInput(f"{name}: holds no RPC")
    return tuple(calls)


def embedded_recordings() -> tuple[str, ...]:
    """Return the names of the embedded recordings."""
    return tuple(sorted(each.name.removesuffix(SUFFIX) for each in _EMBEDDED.iterdir() if each.name.endswith(SUFFIX)))


def _text(name: str) -> str:
    try:
        file = _EMBEDDED / f"{name}{SUFFIX}" if name in embedded_recordings() else Path(name)
        return gzip.decompress(file.read_bytes()).decode()
    except gzip.BadGzipFile as error:
        raise InvalidInput(f"{name}: is not a gzip file; expected what `cagrpc serve --record` writes") from error
    except OSError as error:
        others = ", ".join(embedded_recordings())
        raise InvalidInput(f"{name}: {reason_of(error)}; expected a {SUFFIX} file or one of {others}") from error
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidInput(f"{name}: is not a whole gzip file of text: {error}") from error


def _call(number: int, document: dict[str, Any]) -> Call:
    method, code = str(document["method"]), str(document["code"])
    if method not in METHODS:
        raise ValueError(f"method {shown(method)} is none of the provider's or the expander's")
    if code not in CODES:
        raise ValueError(f"code {shown(code)} is not a gRPC status code")
    return Call(
        line=number,
        seconds=float(document["seconds"]),
        method=method,
        request=base64.b64decode(document["request"] or "", validate=True),
        code=code,
        response=base64.b64decode(document["response"] or "", validate=True),
    )


def _words(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)

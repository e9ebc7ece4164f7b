"""The one tree of errors that callers of cagrpc may see. `cagrpc.services.grpc.status` maps it to gRPC codes, once;
`cagrpc.cli` maps it to exit codes. A message names the place, what was found and what would be right.

    CagrpcError
    ├── InvalidInput            the caller's bytes or values are wrong           INVALID_ARGUMENT     exit 2
    │   └── InvalidConfiguration   every error of a file at once, with paths                          exit 2
    ├── NotFound                no such node group or instance                   NOT_FOUND
    ├── OutOfRange              would leave [min, max] of a group                OUT_OF_RANGE
    ├── LimitExceeded           would break a provisioner or cluster limit       FAILED_PRECONDITION
    ├── FailedPrecondition      the present state does not allow it              FAILED_PRECONDITION
    ├── Conflict                another writer was first                         ABORTED
    ├── OrderRefused            the backend refuses an order                     FAILED_PRECONDITION
    │   ├── OutOfCapacity          it has no more of it now                      RESOURCE_EXHAUSTED
    │   ├── QuotaExceeded          the account may not have more                 RESOURCE_EXHAUSTED
    │   └── OrderMisconfigured     the cloud finds its parameters wrong          FAILED_PRECONDITION
    ├── DeadlineExpired         the call's deadline had passed before it began   DEADLINE_EXCEEDED
    ├── Unavailable             journal or backend out of reach; nothing done    UNAVAILABLE
    │   └── StillStarting          a part of this process is still starting      UNAVAILABLE
    └── NotImplementedByDesign  the answer is "take your defaults"               UNIMPLEMENTED
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

_T = TypeVar("_T")


_LONGEST = 300
_PYTHONS = re.compile(r"\[Errno -?\d+\] | \(while attempting to bind on address .*\)|^HTTPS?Connection\(.*?\): ")
"""What Python and urllib3 say beside what happened."""


def in_words(error: BaseException) -> str:
    """Return what an error of the system or of a library says, without what Python adds; the file that
    it is about comes first."""
    about = error.filename if isinstance(error, OSError) else None
    return f"{about}: {reason_of(error)}" if isinstance(about, str) else reason_of(error)


def reason_of(error: BaseException) -> str:
    """Return the same without the file, where it is named anyway."""
    said = error.strerror if isinstance(error, OSError) else None
    return _PYTHONS.sub("", said or str(error)) or type(error).__name__


def unexpected(error: BaseException) -> str:
    """Return an error that nobody has foreseen: its type, and what it says."""
    return f"{type(error).__name__}: {in_words(error)}"[:_LONGEST]


def shown(value: Any) -> str:
    """Return a value as it is written in a file, truncated to a readable length; what cannot be seen is written out."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=_as_text)
    except (TypeError, ValueError, RecursionError):
        text = str(type(value).__name__)
    text = "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text[:81])
    return text if len(text) <= 80 else f"{text[:77]}..."


def _as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class ErrorKind(StrEnum):
    """What has to happen before the same order can succeed."""

    CAPACITY = "capacity"
    """The cloud gets more of it, or another offering is taken."""
    QUOTA = "quota"
    """The account's quota is raised, or something of it is given back."""
    CONFIGURATION = "configuration"
    """Somebody changes an image, a template, a right."""
    OTHER = "other"


class CagrpcError(Exception):
    """Base of everything cagrpc raises on purpose."""


class InvalidInput(CagrpcError):
    """What the caller sent is invalid."""


class InvalidConfiguration(InvalidInput):
    """One or more errors in configuration files. `problems` has one sentence each, beginning with its path."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class NotFound(CagrpcError):
    """A node group or an instance that is not ours."""


class OutOfRange(CagrpcError):
    """A size outside [min_size, max_size] of its node group."""


class LimitExceeded(CagrpcError):
    """A provisioner's or the cluster's limit would be broken."""


class FailedPrecondition(CagrpcError):
    """A valid request that the present state does not allow."""


class Conflict(CagrpcError):
    """Another writer has changed or created the object in the meantime."""


class OrderRefused(CagrpcError):
    """The backend refuses an order. `node_groups` are those it refuses, where it names them; `retry_after_seconds` is
    how long it will go on refusing, where it says so."""

    kind: ClassVar[ErrorKind] = ErrorKind.OTHER
    code: ClassVar[str] = "refused"
    """For `InstanceError.code`."""

    def __init__(
        self, message: str, node_groups: Sequence[str] = (), *, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.node_groups = tuple(node_groups)
        self.retry_after_seconds = retry_after_seconds


class OutOfCapacity(OrderRefused):
    """The backend has no more capacity of this kind now."""

    kind = ErrorKind.CAPACITY
    code = "out-of-capacity"


class QuotaExceeded(OrderRefused):
    """The account's quota leaves no room for the order."""

    kind = ErrorKind.QUOTA
    code = "quota-exceeded"


class OrderMisconfigured(OrderRefused):
    """The cloud finds the order's parameters wrong (an image, a template, a right that is missing): somebody has to
    change something first."""

    kind = ErrorKind.CONFIGURATION
    code = "misconfigured"


REFUSALS: Mapping[ErrorKind, type[OrderRefused]] = {
    each.kind: each for each in (OutOfCapacity, QuotaExceeded, OrderMisconfigured, OrderRefused)
}
"""The class of each kind of refusal."""


class DeadlineExpired(CagrpcError):
    """The call's deadline had passed before it was started."""


class Unavailable(CagrpcError):
    """The journal or the backend cannot be reached; nothing was changed."""


class StillStarting(Unavailable):
    """A part of this process is still starting, and what it knows is needed: no failure, as it ends by itself."""


class NotImplementedByDesign(CagrpcError):
    """CA is to use its own defaults."""


def attempt(problems: list[str], read: Callable[[], _T], prefix: str = "") -> _T | None:
    """Return what was read; None where that is invalid, and add why, each problem after `prefix`."""
    try:
        return read()
    except InvalidInput as error:
        found = error.problems if isinstance(error, InvalidConfiguration) else str(error).splitlines()
        problems.extend(f"{prefix}{problem}" for problem in found)
        return None


MOST_PROBLEMS = 20
"""Told of one list of problems, unless all are asked for."""
ALL_PROBLEMS = "`cagrpc --all-problems COMMAND` shows all"
"""Where the rest is, for the command line."""
_MOST_KINDS = 5
_VALUES = re.compile(r'"[^"]*"|\[[^\]]*\]|[0-9]+')


def first_problems(problems: Sequence[str], rest: str) -> list[str]:
    """Return the first problems, and how many more there are of what kind: alike but for numbers and what is in quotes.
    `rest` says where all of them are."""
    if len(problems) <= MOST_PROBLEMS + 1:
        return list(problems)
    shown, left = list(problems[:MOST_PROBLEMS]), problems[MOST_PROBLEMS:]
    kinds: dict[str, list[str]] = {}
    for each in left:
        kinds.setdefault(_VALUES.sub("", each), []).append(each)
    shown.append(f"and {len(left)} more problems; {rest}")
    ordered = sorted(kinds.values(), key=len, reverse=True)
    shown += [f"{len(alike)} more like: {alike[0]}" for alike in ordered[:_MOST_KINDS]]
    if len(ordered) > _MOST_KINDS:
        others = sum(map(len, ordered[_MOST_KINDS:]))
        shown.append(f"{others} more of other kinds")
    return shown


def in_one_line(problems: Sequence[str]) -> str:
    """Return problems for a log, a condition or a warning: of many the first, and how many more there are of what
    kind."""
    return "; ".join(first_problems(problems, "they are reported once these are fixed"))


def did_you_mean(found: object, known: Iterable[str]) -> str:
    """Return `; did you mean "..."?`, or nothing where no known word is near."""
    others = [word for word in known if word != found]  # a field of another place may have the same name
    near = difflib.get_close_matches(str(found), others, n=1, cutoff=0.7)
    return f'; did you mean "{near[0]}"?' if near else ""

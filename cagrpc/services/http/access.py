"""Who may read and write pages: whoever is on this machine, whoever comes, nobody, or whom the cluster lets. Its API
server is asked who a bearer token is of (TokenReview), and whether that user may (SubjectAccessReview on the path as a
non-resource URL), as in front of controller-runtime's metrics. Answers are good for a while. Probes are not asked
about."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from cagrpc.errors import CagrpcError, InvalidInput, Unavailable, shown
from cagrpc.runtime.clock import MonotonicClock, monotonic
from cagrpc.runtime.log_once import LogOnce
from cagrpc.runtime.loopback import is_loopback
from cagrpc.services.http.site import HttpAnswer, text_answer
from cagrpc.services.http.threads import BoundedThreads

if TYPE_CHECKING:  # a server without a cluster starts without it
    from cagrpc.kube.client.client import Client

log = logging.getLogger(__name__)

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_YES_SECONDS = 60.0
"""A token that is revoked, or a right that is taken away, ends so much later."""
_NO_SECONDS = 10.0
_MOST_KEPT = 1000
_LONGEST_TOKEN = 16 * 1024
_ANSWER_SECONDS = 5.0
_REVIEWS_AT_ONCE = 4
_REVIEWS_WAITING = 32
_SCHEME = "bearer"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request wants to do, in the terms of RBAC for non-resource URLs, and what it says of who it is."""

    verb: str
    """`get` or `put`."""
    path: str
    host: str = ""
    """The header Host."""
    authorization: str = ""
    """The header Authorization."""


class PageAccess(Protocol):
    """Decides about requests for pages."""

    async def refusal(self, asked: Asked) -> HttpAnswer | None:
        """Return the answer to a request that is refused; None where it may be served. Raises Unavailable where that
        cannot be said."""
        ...


class Anybody:
    """Whoever reaches the server."""

    async def refusal(self, asked: Asked) -> HttpAnswer | None:
        del asked
        return None


class ThisMachine:
    """Whoever reaches the server by a name of this machine. A page of another site that a browser here shows reaches it
    too, by a name of its own that is made to point here (DNS rebinding); the browser sends that name as Host."""

    async def refusal(self, asked: Asked) -> HttpAnswer | None:
        try:
            host = urlsplit(f"//{asked.host}").hostname
        except ValueError:
            host = asked.host
        if not asked.host or is_loopback(host or ""):  # only HTTP/1.0, which no browser speaks, has no Host
            return None
        return text_answer(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"this server is asked as {shown(asked.host)}, and it serves only this machine, as localhost; behind a"
            " proxy say http: {insecure: true}",
        )


class Nobody:
    """Without a cluster there is nobody to ask who a token is of."""

    async def refusal(self, asked: Asked) -> HttpAnswer | None:
        return text_answer(
            HTTPStatus.FORBIDDEN,
            f"{asked.path[:100]} is not served: who may read it is asked of a cluster, and there is none in the"
            " configuration (section kubernetes); a server that listens on a loopback address serves this machine, and"
            " http: {insecure: true} serves whoever comes",
        )


@dataclass(frozen=True, slots=True)
class User:
    """Who a token is of, as the API server says."""

    name: str
    fields: Mapping[str, Any]
    """The fields of a SubjectAccessReview's spec: user, uid, groups, extra."""


class _Kept(Generic[T]):
    """Answers by question, each until it is too old; the oldest goes where there are too many."""

    def __init__(self, clock: MonotonicClock) -> None:
        self._clock = clock
        self._answers: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()

    def get(self, question: Hashable) -> T | None:
        until, answer = self._answers.get(question, (0.0, None))
        return answer if self._clock() < until else None

    def keep(self, question: Hashable, answer: T, seconds: float) -> None:
        self._answers.pop(question, None)
        self._answers[question] = (self._clock() + seconds, answer)
        while len(self._answers) > _MOST_KEPT:
            self._answers.popitem(last=False)


class Readers:
    """Decides by bearer token. Belongs to one loop; the API server is asked in threads beside it."""

    def __init__(self, client: Client, audiences: Sequence[str] = (), clock: MonotonicClock = monotonic) -> None:
        """`audiences`: a token must be made for one of these; by default for the API server's own."""
        self._client = client.hurried(_ANSWER_SECONDS)
        self._audiences = list(audiences)
        self._turns = BoundedThreads("questions who may read", _REVIEWS_AT_ONCE, _REVIEWS_WAITING)
        self._users: _Kept[User] = _Kept(clock)
        self._unknown: _Kept[HttpAnswer] = _Kept(clock)  # apart: many of these drive out no user
        self._rights: _Kept[bool] = _Kept(clock)
        self._told = LogOnce()

    async def refusal(self, asked: Asked) -> HttpAnswer | None:
        scheme, _, token = asked.authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != _SCHEME or not token:
            return _unauthorized("a bearer token is needed (Authorization: Bearer TOKEN)")
        if len(token) > _LONGEST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
            return _unauthorized("this is not a bearer token")
        digest = sha256(token.encode()).digest()
        user = self._users.get(digest) or self._unknown.get(digest)
        if user is None:
            user = await self._asked("TokenReview", partial(self._user, token))
            if isinstance(user, User):
                self._users.keep(digest, user, _YES_SECONDS)
            else:
                self._unknown.keep(digest, user, _NO_SECONDS)
        if not isinstance(user, User):
            return user
        right = (digest, asked.verb, asked.path)
        allowed = self._rights.get(right)
        if allowed is None:
            allowed = await self._asked("SubjectAccessReview", partial(self._may, user, asked))
            self._rights.keep(right, allowed, _YES_SECONDS if allowed else _NO_SECONDS)
        return None if allowed else _forbidden(user, asked)

    async def _asked(self, what: str, ask: Callable[[], T]) -> T:
        """Ask the API server. Raises Unavailable where there is no answer: neither yes nor no is kept then."""
        try:
            found = await self._turns.run(ask)
        except CagrpcError as error:
            if self._told.is_new(str(error), about=what):
                log.warning("%s failed: %s", what, error)
            raise Unavailable(
                "who may read could not be asked of the API server; try again (the server's log has the reason)"
            ) from error
        self._told.over(what)
        return found

    def _user(self, token: str) -> User | HttpAnswer:
        spec: dict[str, Any] = {"token": token}
        if self._audiences:
            spec["audiences"] = self._audiences
        status = self._review(TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", spec)
        user = status.get("user")
        name = user.get("username") if isinstance(user, Mapping) else None
        if status.get("authenticated") is not True or not isinstance(user, Mapping) or not isinstance(name, str):
            log.debug("a token is refused: %s", status.get("error"))
            return _unauthorized("the API server does not accept this token")
        if self._audiences and not set(self._audiences) & set(status.get("audiences") or ()):
            # An authenticator that knows no audiences ignores the question (KEP-460 leaves this to who asks).
            return _unauthorized(f"this token is not made for {' or '.join(self._audiences)}")
        fields = {"user": name, **{key: user[key] for key in ("uid", "groups", "extra") if user.get(key)}}
        return User(name, fields)

    def _may(self, user: User, asked: Asked) -> bool:
        spec = {**user.fields, "nonResourceAttributes": {"path": asked.path, "verb": asked.verb}}
        status = self._review(ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
        return status.get("allowed") is True and status.get("denied") is not True

    def _review(self, path: str, version: str, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = self._client.create(path, {"apiVersion": version, "kind": kind, "spec": spec})
        status = answer.get("status")
        if not isinstance(status, Mapping):
            raise InvalidInput(f"{self._client.server}: expected a {kind} with a status, found none")
        return status


def _unauthorized(why: str) -> HttpAnswer:
    return text_answer(
        HTTPStatus.UNAUTHORIZED, f"{why}: that of an account with the ClusterRole cagrpc-reader (kubectl create token)"
    )


def _forbidden(user: User, asked: Asked) -> HttpAnswer:
    role = "cagrpc-reader" if asked.verb == "get" else "cagrpc-simulation"
    return text_answer(
        HTTPStatus.FORBIDDEN,
        f"{user.name[:200]} may not {asked.verb} {asked.path[:100]}; the ClusterRole {role} gives the right to what"
        " there is",
    )

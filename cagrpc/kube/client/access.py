"""Access to a cluster: its address, TLS and credentials, as the official client's loaders read them from a kubeconfig
or from a pod's service account. Requests are made in `client`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import urllib3
import yaml
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from cagrpc.errors import InvalidInput, Unavailable, did_you_mean, reason_of
from cagrpc.runtime.clock import MonotonicClock, monotonic

log = logging.getLogger(__name__)

Load = Callable[[Configuration], None]
"""Fills in a configuration from its source."""

_RELOAD_SECONDS = 10.0
_UNREADABLE = (ConfigException, OSError, yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError)
"""What the loaders raise for an invalid file."""


@dataclass(frozen=True, slots=True)
class Session:
    """A set of credentials with the connections that were made with it."""

    url: str
    pool: urllib3.PoolManager
    _configuration: Configuration
    _lock: Lock = field(default_factory=Lock)

    def authorization(self) -> dict[str, str]:
        """Return the Authorization header; empty with a client certificate. A token that is about to expire is reloaded
        from its file, or by its exec plugin."""
        with self._lock:  # the loaders modify the configuration that they returned
            try:
                bearer = self._configuration.auth_settings().get("BearerToken")
            except _UNREADABLE as error:
                raise Unavailable(f"{self.url}: its credentials cannot be refreshed: {error}") from error
        return {"authorization": str(bearer["value"])} if bearer else {}


class Access:
    """Holds the current session. Credentials that the server refuses are reloaded, because certificates and token files
    may have been renewed."""

    def __init__(self, load: Load, pool_size: int, clock: MonotonicClock = monotonic) -> None:
        """Load the first session. Raises InvalidInput where the credentials cannot be loaded."""
        self._load = load
        self._pool_size = pool_size
        self._clock = clock
        self._lock = Lock()
        self._told = False
        self._session = self._loaded()
        self._loaded_at = clock()

    @property
    def session(self) -> Session:
        return self._session

    def renew(self, refused: Session) -> bool:
        """Return whether there is a session other than the refused one; load one, unless that was done less than
        `_RELOAD_SECONDS` ago."""
        with self._lock:
            if self._session is not refused:
                return True
            if self._clock() < self._loaded_at + _RELOAD_SECONDS:
                return False
            self._loaded_at = self._clock()
            try:
                self._session = self._loaded()
            except InvalidInput as error:
                raise Unavailable(f"{refused.url} refuses our credentials, and there are no others: {error}") from error
            refused.pool.clear()
            return True

    def close(self) -> None:
        self._session.pool.clear()

    def _loaded(self) -> Session:
        configuration = Configuration()
        configuration.connection_pool_maxsize = self._pool_size
        configuration.keep_alive = True
        self._load(configuration)
        if not configuration.verify_ssl:
            self._tell_once(configuration.host)
        pool = RESTClientObject(configuration).pool_manager
        return Session(configuration.host.rstrip("/"), pool, configuration)

    def _tell_once(self, url: str) -> None:
        """Say in the log that the server is not verified, instead of urllib3's three lines on stderr per request."""
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        if not self._told:
            self._told = True
            log.warning(
                "%s: its certificate is not verified (insecure-skip-tls-verify): whoever stands in between can read and"
                " change all that is exchanged with it",
                url,
            )


def from_kubeconfig(path: Path, context: str = "") -> Load:
    def load(configuration: Configuration) -> None:
        try:
            content = path.read_bytes()  # the loader reports a missing file as an empty one
            if not isinstance(yaml.safe_load(content), dict):
                raise InvalidInput(f"kubeconfig {path}: expected a kubeconfig with clusters, users and contexts")
            load_kube_config(
                str(path), context=context or None, client_configuration=configuration, persist_config=False
            )
        except _UNREADABLE as error:
            where = f"kubeconfig {path}" + (f", context {context}" if context else "")
            why = " ".join(reason_of(error).split())
            raise InvalidInput(_no_context(path, context) or f"{where}: {why}") from error

    return load


def _no_context(path: Path, context: str) -> str:
    """Return that a kubeconfig has no such context, or without a name no current one, and which it has; empty where
    that is not what is wrong."""
    try:
        document = yaml.safe_load(path.read_bytes())
        names = [str(each["name"]) for each in document["contexts"]]
        wanted = context or document.get("current-context")
    except _UNREADABLE:
        return ""
    if wanted in names:
        return ""
    has = f"it has {', '.join(names)}" if names else "it has none"
    if not wanted:
        return f"kubeconfig {path}: names no current context; --context names one: {has}"
    return f"kubeconfig {path}: has no context {wanted}{did_you_mean(wanted, names)}; {has}"


def in_cluster() -> Load:
    def load(configuration: Configuration) -> None:
        try:
            load_incluster_config(client_configuration=configuration)
        except _UNREADABLE as error:
            raise InvalidInput(
                f"kubernetes.in_cluster: this is not a pod with a service account: {error} Set kubernetes.kubeconfig"
                " outside a cluster"
            ) from error

    return load

"""How a cluster is reached: its address, TLS and credentials, as the official client's loaders read them from a
kubeconfig or from the service account of a pod. Requests are made in `client`; nothing here knows what is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import urllib3
import yaml
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from cagrpc.errors import InvalidInput, Unavailable
from cagrpc.runtime.clock import MonotonicClock, monotonic

Load = Callable[[Configuration], None]
"""Fills in a configuration from where it is kept."""

_RELOAD_SECONDS = 10.0
_UNREADABLE = (ConfigException, OSError, yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError)
"""What the loaders raise for a file that is none of theirs."""


@dataclass(frozen=True, slots=True)
class Session:
    """One set of credentials with the connections that were made with it."""

    url: str
    pool: urllib3.PoolManager
    _configuration: Configuration
    _lock: Lock = field(default_factory=Lock)

    def authorization(self) -> dict[str, str]:
        """The header that says who asks; empty with a client certificate. A token that is about to expire is fetched
        anew: from its file, or by its exec plugin."""
        with self._lock:  # the loaders change what they gave
            try:
                bearer = self._configuration.auth_settings().get("BearerToken")
            except _UNREADABLE as error:
                raise Unavailable(f"{self.url}: its credentials cannot be refreshed: {error}") from error
        return {"authorization": str(bearer["value"])} if bearer else {}


class Access:
    """The session to use now. Credentials that the server refuses are loaded again: certificates and token files may
    have been renewed since."""

    def __init__(self, load: Load, pool_size: int, clock: MonotonicClock = monotonic) -> None:
        """Raises InvalidInput where there is nothing to load."""
        self._load = load
        self._pool_size = pool_size
        self._clock = clock
        self._lock = Lock()
        self._session = self._loaded()
        self._loaded_at = clock()

    @property
    def session(self) -> Session:
        return self._session

    def renew(self, refused: Session) -> bool:
        """Whether there is another session than the one that was refused: loads one, unless that was done just now."""
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
        pool = RESTClientObject(configuration).pool_manager
        return Session(configuration.host.rstrip("/"), pool, configuration)


def from_kubeconfig(path: Path, context: str = "") -> Load:
    def load(configuration: Configuration) -> None:
        try:
            path.read_bytes()  # a missing file would be told as an empty one
            load_kube_config(  # type: ignore[no-untyped-call]
                str(path), context=context or None, client_configuration=configuration, persist_config=False
            )
        except _UNREADABLE as error:
            where = f"kubeconfig {path}" + (f", context {context}" if context else "")
            raise InvalidInput(f"{where}: {error}") from error

    return load


def in_cluster() -> Load:
    def load(configuration: Configuration) -> None:
        try:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except _UNREADABLE as error:
            raise InvalidInput(
                f"kubernetes.in_cluster: this is no pod with a service account: {error} Give kubernetes.kubeconfig"
                " outside a cluster"
            ) from error

    return load

"""A service in a standby: while another process leads, every call is UNAVAILABLE."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cagrpc.errors import Unavailable
from cagrpc.services.grpc.status import CallContext, Method


class Gate:
    """A service's methods, shut until `open`. Thread-safe."""

    def __init__(self, names: tuple[str, ...], why_shut: Callable[[], str]) -> None:
        """`why_shut` gives the message for callers."""
        self._why_shut = why_shut
        self._behind: Mapping[str, Method] | None = None
        self._names = names

    def methods(self) -> dict[str, Method]:
        """Return the methods by name, for `RpcServer`: they raise Unavailable while it is shut."""
        return {name: self._method(name) for name in self._names}

    def open(self, methods: Mapping[str, Method]) -> None:
        """Serve these methods from now on."""
        self._behind = methods

    def _method(self, name: str) -> Method:
        def method(data: bytes, call: CallContext) -> bytes:
            if self._behind is None:
                raise Unavailable(self._why_shut())
            return self._behind[name](data, call)

        return method

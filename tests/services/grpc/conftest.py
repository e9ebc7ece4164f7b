"""Every test of the gRPC services is run over both fronts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.grpc_servers import FRONTS, fronted


@pytest.fixture(autouse=True, params=FRONTS)
def _front(request: pytest.FixtureRequest) -> Iterator[None]:
    with fronted(request.param):
        yield

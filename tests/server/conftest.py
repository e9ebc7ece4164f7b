"""What tests of the whole server share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.grpc_servers import FRONTS, fronted


@pytest.fixture(params=FRONTS)
def both_fronts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test over both fronts of the provider; others are run over the native one where it is built."""
    with fronted(request.param):
        yield

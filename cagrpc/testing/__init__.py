"""For tests of what is built on cagrpc, with pytest (`pip install cagrpc[testing]`): the conformance suite that every
backend passes. Nothing else of cagrpc imports it.

    from cagrpc.testing import BackendConformance, Cloud

    class TestConformance(BackendConformance):
        @pytest.fixture
        def cloud(self, tmp_path: Path) -> Cloud:
            return MyCloud(tmp_path)
"""

import pytest

pytest.register_assert_rewrite("cagrpc.testing.suite", "cagrpc.testing.fleet_suite")

from cagrpc.testing.cloud import Ability, Cloud  # noqa: E402 - assertions are rewritten at the import
from cagrpc.testing.suite import BackendConformance  # noqa: E402 - the same

__all__ = ["Ability", "BackendConformance", "Cloud"]

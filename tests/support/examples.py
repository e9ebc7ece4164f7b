"""How many examples a property is tried with: hypothesis profiles, and counts in proportion to them.

A profile is chosen by HYPOTHESIS_PROFILE or `--hypothesis-profile`. Settings common to every property are here, so that
a test names a count and nothing else.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Verbosity, settings

_ALL = settings(
    # The time that an example takes depends more on the machine than on the code under test.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    print_blob=True,
)
settings.register_profile("default", _ALL, max_examples=25)
# The same examples each time, as in hypothesis' profile of this name: CI judges the change, not the seed. As many new
# ones are tried by everybody else.
settings.register_profile("ci", _ALL, max_examples=25, derandomize=True, database=None)
settings.register_profile("nightly", _ALL, max_examples=200)
settings.register_profile("debug", _ALL, max_examples=5, verbosity=Verbosity.verbose)


def load_profile() -> None:
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def examples(count: int, *, steps: int = 50, derandomize: bool = False) -> settings:
    """Return the settings for `count` examples where a profile has 100, and in proportion under any other one.

    `steps` are those of a state machine.
    """
    share = max(1, count * settings().max_examples // 100)
    if settings().derandomize or derandomize:  # which rules out a database
        return settings(max_examples=share, stateful_step_count=steps, derandomize=True, database=None)
    return settings(max_examples=share, stateful_step_count=steps)

"""What a replay prints."""

from __future__ import annotations

import io

from rich.console import Console

from cagrpc.replay.conversation import Increase, OptionAsked, RecordedDecision, Replay
from cagrpc.replay.report import print_report

OPTIONS = (OptionAsked("large", 1, 4), OptionAsked("small", 4, 4))


def _printed(*events: RecordedDecision | Increase) -> str:
    written = io.StringIO()
    print_report(Replay("recording", [*events]), Console(file=written, width=160))
    return written.getvalue()


def test_it_says_where_the_recording_went_on_with_another_choice_than_ours() -> None:
    other = RecordedDecision(OPTIONS, "large", "small", "cheaper", 1.0)
    same = RecordedDecision(OPTIONS, "small", "small", "cheaper", 1.0)
    large, small = (Increase(group, 1, "OK", "OK", "1 running", 1.0) for group in ("large", "small"))
    assert _printed(other, large).count("the recording's way: cagrpc chose small") == 1
    assert "the recording's way" not in _printed(same, small, large)
    assert "the recording's way" not in _printed(other, small)
    veto = RecordedDecision(OPTIONS, "large", "", "a gang would be split", 1.0)
    assert "the recording's way: cagrpc chose (none)" in _printed(veto, large)

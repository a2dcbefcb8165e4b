"""The limits for an abuse run, computed without a server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.abuse.__main__ import rounds_of
from benchmarks.abuse.abuse_process import SHARE, Abuse, Place, at_work
from benchmarks.abuse.catalogue import ABUSES
from benchmarks.abuse.ordinary_client import EVERY_S, stalls
from benchmarks.abuse.verdict import FLOOR_MS, LINES_MORE, LINES_PER_S, MOST_RATIO, Round, Seen, failures

MIB = 1 << 20


def seen(*rounds: tuple[float, float], grown: int = 0, lines: int = 0, wrong: tuple[str, ...] = ()) -> Seen:
    return Seen([Round(*each) for each in rounds], grown, lines, 10.0, wrong)


def test_figures_are_the_medians_of_the_rounds() -> None:
    of_three = seen((1.0, 2.0), (2.0, 100.0), (4.0, 12.0))
    assert (of_three.quiet_ms, of_three.abuse_ms, of_three.ratio) == (2.0, 12.0, 3.0)


def test_round_above_the_ratio_and_the_floor_fails() -> None:
    assert failures(seen((2.0, 2.0 * MOST_RATIO)), MIB) == []
    assert failures(seen((0.1, FLOOR_MS - 0.1)), MIB) == []
    assert failures(seen((0.1, FLOOR_MS)), MIB) == ["p99 5.0 ms is 50.0 times the quiet p99"]
    assert failures(seen((2.0, 10.5)), MIB, floor_ms=11.0) == []


def test_one_bad_round_of_three_passes_and_two_fail() -> None:
    assert failures(seen((1.0, 2.0), (1.0, 900.0), (1.0, 2.0)), MIB) == []
    assert len(failures(seen((1.0, 2.0), (1.0, 900.0), (1.0, 900.0)), MIB)) == 1


def test_growth_beyond_the_limit_fails() -> None:
    assert failures(seen((1.0, 1.0), grown=MIB), MIB) == []
    assert failures(seen((1.0, 1.0), grown=3 * MIB), MIB) == ["the server grew by 3 MiB, more than 1"]


def test_log_that_grows_with_the_abuse_fails() -> None:
    most = int(LINES_MORE + 10 * LINES_PER_S)
    assert failures(seen((1.0, 1.0), lines=most), MIB) == []
    assert len(failures(seen((1.0, 1.0), lines=most + 1), MIB)) == 1


def test_error_fails_without_a_round() -> None:
    assert failures(seen(wrong=("it is lost",)), MIB) == ["it is lost"]


def test_stall_counts_for_all_requests_that_would_have_waited() -> None:
    assert stalls(EVERY_S / 2) == [EVERY_S / 2]
    assert stalls(3 * EVERY_S) == pytest.approx([3 * EVERY_S, 2 * EVERY_S, EVERY_S])


def test_long_runs_have_three_rounds_and_short_ones_one() -> None:
    assert [rounds_of(seconds) for seconds in (0.5, 2, 6, 10, 100)] == [1, 1, 2, 3, 3]


def test_names_of_abuses_are_unique() -> None:
    assert len({each.name for each in ABUSES}) == len(ABUSES)


def counts(place: Place) -> None:
    place.fates["counted"] += 1


def fails(place: Place) -> None:
    raise ValueError("no")


def test_process_of_an_abuser_reports_its_result(tmp_path: Path) -> None:
    with at_work(Abuse("counts", counts, 1), {}, tmp_path, 0.0, 1) as fates:
        assert not fates
    assert fates == {"counted": 1}


def test_failed_abuser_is_not_a_withstood_one(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ValueError: no"), at_work(Abuse("fails", fails, 1), {}, tmp_path, 0.0, 1):
        pass


def test_abuser_that_works_too_much_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    worked = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], process_time=lambda: worked[0], sleep=pause)
    monkeypatch.setattr("benchmarks.abuse.abuse_process.time", clock)
    place = Place({}, tmp_path, 60.0, 1)
    assert place.goes_on() and now == [0.0]
    now[0] = worked[0] = 3.0  # all of the time
    assert place.goes_on()
    assert now[0] == pytest.approx(3.0 / SHARE, rel=0.01)
    worked[0] = 60.0
    assert not place.goes_on(), "the time is over before it has paused for so much"

"""The checks of a torture run recognise redeliveries that have a cause, and only these."""

from __future__ import annotations

import pytest

from tests.torture import item_tracker
from tests.torture.item_tracker import ABORTED, CONFIRMED, OPENED, STORED, Item, ItemTracker, Timeline


class Run:
    """A torture run with one item, at times that the test chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.5
        monkeypatch.setattr(item_tracker.time, "monotonic", lambda: self.now_s)
        self.tracker = ItemTracker(1, Timeline())
        self.item = self.tracker.new_item("jobs", ["jobs"], 10, 0, "producer")
        self.tracker.set_put_result([self.item], STORED)

    def receive(
        self,
        at_s: float,
        requested_s: float,
        outcome: str = OPENED,
        timeout_s: float = 0.0,
        item: Item | None = None,
    ) -> None:
        self.now_s = at_s
        data = self.tracker.data(item or self.item)
        self.tracker.add_delivery(
            "jobs", "jobs", data, "consumer", requested_s, outcome, lambda: 0.0, timeout_s=timeout_s
        )

    @property
    def failed(self) -> list[str]:
        return [check for check, histories in self.tracker.failures.items() if histories]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_timed_out_read_may_be_delivered_again(run: Run) -> None:
    run.receive(1.1, requested_s=1.0, timeout_s=0.2)
    run.receive(1.4, requested_s=1.3)
    assert (run.failed, dict(run.tracker.causes)) == ([], {"timed out": 1})


@pytest.mark.parametrize("outcome", [OPENED, CONFIRMED])
def test_reply_to_a_timed_out_read_may_be_received_last(run: Run, outcome: str) -> None:
    run.receive(1.7, requested_s=1.6, outcome=outcome)
    run.receive(1.72, requested_s=1.0, timeout_s=0.2)
    assert (run.failed, dict(run.tracker.causes)) == ([], {"timed out": 1})


@pytest.mark.parametrize(("received_s", "requested_s"), [(1.72, 1.6), (1.9, 1.0)])
def test_item_with_two_holders_is_a_failure(run: Run, received_s: float, requested_s: float) -> None:
    run.receive(1.7, requested_s=1.6)
    run.receive(received_s, requested_s=requested_s, timeout_s=0.2)
    assert run.failed == ["duplicates"]


def test_item_delivered_after_its_get_is_a_failure(run: Run) -> None:
    run.receive(1.0, requested_s=0.9, outcome=CONFIRMED)
    run.receive(3.5, requested_s=3.4)
    assert run.failed == ["confirmed"]


@pytest.mark.parametrize(("received_s", "ahead_s", "failed"), [(2.4, 0, ["early"]), (2.5, 0, []), (1.1, 2, [])])
def test_delayed_item_delivered_before_it_is_due_is_a_failure(
    run: Run, received_s: float, ahead_s: float, failed: list[str]
) -> None:
    delayed = run.tracker.new_item("jobs", ["jobs"], 10, 0, "producer", 2000)
    run.tracker.set_put_result([delayed], STORED)
    run.tracker.timeline.clock.append((1.6 if ahead_s == 0 else 0.9, ahead_s))
    run.receive(received_s, requested_s=1.0, item=delayed)
    assert run.failed == failed


def test_get_without_a_reply_may_have_taken_a_returned_item(run: Run) -> None:
    run.receive(1.0, requested_s=0.9, outcome=ABORTED)
    behind = run.tracker.new_item("jobs", ["jobs"], 10, 0, "producer")
    run.tracker.set_put_result([behind], STORED)
    run.receive(1.1, requested_s=1.0, outcome=CONFIRMED, item=behind)
    run.receive(8.0, requested_s=7.9, outcome=ABORTED)
    assert run.tracker.unexplained("jobs", [run.item]) == [run.item]
    run.now_s = 8.2
    run.tracker.add_unanswered_get("jobs", 8.1, 1)
    assert run.tracker.unexplained("jobs", [run.item]) == []

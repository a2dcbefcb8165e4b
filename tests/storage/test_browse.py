"""Items that are seen in memory without taking them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from zope.interface.verify import verifyObject

from kestrel.errors import QueueFailed
from kestrel.storage.interfaces import IBrowsing
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.suite import StorageContract
from tests.storage import test_journal, test_memory
from tests.storage.scroll import test_contract as test_scroll
from tests.storage.windowed import test_contract as test_windowed

BACKENDS = {
    "journal": test_journal.TestJournal,
    "memory": test_memory.TestMemory,
    "scroll": test_scroll.TestScroll,
    "windowed": test_windowed.TestWindowed,
}


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorageUnderTest]:
    contract: StorageContract = request.param()
    subject = StorageUnderTest(contract, tmp_path / "queues")
    yield subject
    subject.end()


def test_returned_and_other_items_are_seen_in_order_and_stay(subject: StorageUnderTest) -> None:
    queue = subject.queue()
    data = [b"%d" % number for number in range(9)]
    subject.put(queue, *data)
    taken = [subject.open(queue).xid for _ in range(3)]
    queue.put_back(taken, True)
    assert verifyObject(IBrowsing, queue)
    browsing = IBrowsing(queue)
    for first in range(11):
        for count in range(11):
            assert [item.data for item in browsing.browse(first, count)] == data[first : first + count]
    assert [item.errors for item in browsing.browse(2, 2)] == [1, 0]
    assert [item.data for item in subject.take_all(queue)] == data


def test_a_failed_queue_shows_no_items(subject: StorageUnderTest) -> None:
    queue = subject.queue()
    subject.put(queue, b"1")
    subject.storage.delete(queue)
    with pytest.raises(QueueFailed):
        IBrowsing(queue).browse(0, 1)

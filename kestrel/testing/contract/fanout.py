"""Fanout storage: an item is stored once for all queues of a fanout (`shared_fanout`)."""

from __future__ import annotations

from typing import Final

from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.contract.backend import Backend, StorageUnderTest
from kestrel.testing.contract.requirements import ADD_MS, requires

ITEM: Final = b"x" * 1000
CHILDREN: Final = [b"fan+%d" % number for number in range(100)]
FEW_BYTES: Final = 64
"""The bytes that may be stored for each child."""


def begin(subject: StorageUnderTest) -> list[IQueueStorage]:
    """Return the parent and its children. One item has already passed through each of them."""
    queues = [subject.queue(name) for name in (b"fan", *CHILDREN)]
    subject.store_in_all(queues, b"")
    for queue in queues:
        subject.get(queue)
    subject.commit(*queues)
    return queues


@requires("shared_fanout")
class SharedFanoutTests(Backend):
    """A parent with a hundred children."""

    def test_fanout_item_is_stored_once(self, subject: StorageUnderTest) -> None:
        queues = begin(subject)
        before = self.taken_bytes(subject)
        subject.store_in_all(queues, ITEM)
        taken = self.taken_bytes(subject) - before
        assert taken < len(ITEM) + FEW_BYTES * len(queues)
        assert all(subject.take_all_data(queue) == [ITEM] for queue in queues)

    def test_children_keep_their_own_heads(self, subject: StorageUnderTest, event: str) -> None:
        queues = begin(subject)
        items = [b"%d" % number for number in range(5)]
        for data in items:
            subject.storage.put(queues, data, ADD_MS, 0)
        for number, name in enumerate(CHILDREN[:5]):
            for _ in range(number):
                subject.get(subject.queue(name))
        subject.commit(*queues)
        again = subject.after(event)
        for number, name in enumerate(CHILDREN[:5]):
            assert again.take_all_data(again.queue(name)) == items[number:]
        assert again.take_all_data(again.queue(CHILDREN[5])) == items
        assert again.take_all_data(again.queue(b"fan")) == items

    def test_item_for_some_children_is_not_in_others(self, subject: StorageUnderTest, event: str) -> None:
        queues = begin(subject)
        some = queues[10:20]
        subject.storage.put(some, ITEM, ADD_MS, 0)
        subject.commit(*queues)
        again = subject.after(event)
        found = {name: again.take_all_data(again.queue(name)) for name in (b"fan", *CHILDREN)}
        assert found == {name: [ITEM] if name in CHILDREN[9:19] else [] for name in (b"fan", *CHILDREN)}

    def test_later_child_has_no_earlier_items(self, subject: StorageUnderTest, event: str) -> None:
        queues = begin(subject)
        subject.storage.put(queues, b"before", ADD_MS, 0)
        late = subject.queue(b"fan+late")
        subject.storage.put([*queues, late], b"after", ADD_MS, 0)
        subject.commit(*queues, late)
        again = subject.after(event)
        assert again.take_all_data(again.queue(b"fan+late")) == [b"after"]
        assert again.take_all_data(again.queue(b"fan+0")) == [b"before", b"after"]

    def test_deleted_child_leaves_siblings_and_is_empty_when_recreated(
        self, subject: StorageUnderTest, event: str
    ) -> None:
        queues = begin(subject)
        subject.store_in_all(queues, ITEM)
        subject.storage.delete(subject.queue(b"fan+1"))
        subject.commit(*queues)
        again = subject.after(event)
        assert again.take_all_data(again.queue(b"fan+1")) == []
        assert again.take_all_data(again.queue(b"fan+0")) == [ITEM]
        assert again.take_all_data(again.queue(b"fan")) == [ITEM]

    def test_deleted_parent_leaves_its_children(self, subject: StorageUnderTest, event: str) -> None:
        queues = begin(subject)
        subject.store_in_all(queues, ITEM)
        subject.storage.delete(subject.queue(b"fan"))
        children = [subject.queue(name) for name in CHILDREN]
        subject.storage.put(children, b"later", ADD_MS, 0)
        subject.commit(*queues)
        again = subject.after(event)
        assert again.take_all_data(again.queue(b"fan")) == []
        assert all(again.take_all_data(again.queue(name)) == [ITEM, b"later"] for name in CHILDREN)

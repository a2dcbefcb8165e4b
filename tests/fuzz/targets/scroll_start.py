"""Starts of a server with a writer file and the reader files of a queue and its child, of any bytes."""

from __future__ import annotations

from pathlib import Path

from kestrel.item import Item
from kestrel.scroll.records import READER_MAGIC, WRITER_MAGIC
from tests.fuzz import scroll_inputs
from tests.fuzz.choices import Choices
from tests.fuzz.scratch_folder import scratch_folder
from tests.fuzz.target import Target
from tests.scroll.independent import FoundItem, queues_in
from tests.scroll.storages import Scrolls

NAMES = ("work.1700000000000", "work.read.", "work.read.x")


def check(data: bytes) -> None:
    """Check that a start serves the items that the second reader then finds, and a second start serves them again.

    An item that is put afterwards must come last.
    """
    with scratch_folder() as folder:
        folder.mkdir()
        for name, contents in zip(NAMES, split(data), strict=True):
            if contents:
                (folder / name).write_bytes(contents)
        served = _served(folder)
        found = {name: queue.items for name, queue in queues_in(folder).items()}
        # The server does not serve a queue without items and without a reader file.
        assert served == {name: items for name, items in found.items() if items or name in served}
        assert _served(folder) == served
        again = Scrolls(folder)
        queue = again.queue()
        before = len(again.look_through(queue))
        again.put_and_commit(queue, b"last")
        items = again.take_all(queue)
        assert [item.data for item in items[before:]] == [b"last"]
        assert all(item.id < items[-1].id for item in items[:-1])
        again.close()


def _served(folder: Path) -> dict[bytes, list[FoundItem]]:
    """Return the items of each queue that a start serves."""
    scrolls = Scrolls(folder)
    served = {name: [_found(item) for item in scrolls.look_through(scrolls.queue(name))] for name in scrolls.loaded}
    scrolls.close()
    return served


def _found(item: Item) -> FoundItem:
    return FoundItem(item.id, item.data, item.add_ms, item.expiry_ms, item.errors)


def split(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the writer file, the reader file of the queue, and that of its child `x`."""
    choices = Choices(data)
    own_bytes, child_bytes = choices.number(256), choices.number(256)
    stream = choices.rest()
    child_at = max(0, len(stream) - child_bytes)
    own_at = max(0, child_at - own_bytes)
    return stream[:own_at], stream[own_at:child_at], stream[child_at:]


def repaired(data: bytes) -> bytes:
    """Return the input with each of the three files repaired."""
    parts = split(data)
    magics = (WRITER_MAGIC, READER_MAGIC, READER_MAGIC)
    whole = b"".join(
        scroll_inputs.repaired(part, magic) if len(part) >= len(magic) else part
        for part, magic in zip(parts, magics, strict=True)
    )
    return whole + data[len(whole) :]


TARGET = Target(check, lambda: scroll_inputs.WORDS, repaired, max_bytes=1024)

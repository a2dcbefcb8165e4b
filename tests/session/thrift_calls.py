"""A thrift client over a connection in memory, with methods for the calls of Kestrel's service.

client = ThriftClient(server)
client.put(b"work", b"one", b"two")
assert client.get(b"work", 10, auto_abort_ms=500) == [Taken(b"one", 17...), Taken(b"two", 17...)]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kestrel.protocols import thrift_binary as binary
from kestrel.protocols.codec import QueueInfo
from kestrel.testing.server import MemoryServer
from tests.protocols.finagle_headers import request_header, without_header

QUIESCENT: Final = 1
READ_ONLY: Final = 2
UP: Final = 3

LONG_MS: Final = 3_600_000
"""An auto-abort time that no test reaches."""


class Taken(NamedTuple):
    """An item returned by get: its data, and the id for confirm and abort."""

    data: bytes
    id: int


class Refused(Exception):
    """The TApplicationException of a call, with its type and message."""

    def __init__(self, type_: int, message: str) -> None:
        super().__init__(type_, message)
        self.type = type_
        self.message = message


class Reply(NamedTuple):
    """One message from the server: its header, and the result of the method.

    `result` is an int, bytes, a `QueueInfo`, a list of `Taken`, a `Refused`, or None if the method returns nothing.
    """

    name: bytes
    seqid: int
    result: object
    is_strict: bool = True


class ThriftClient:
    """One thrift connection. A call that fails raises `Refused`.

    `upgrade` switches to the headers of Finagle's clients; each call then sends `name`.
    """

    def __init__(self, server: MemoryServer, *, is_strict: bool = True) -> None:
        self._client = server.connect("thrift")
        self._is_strict = is_strict
        self._seqid = 0
        self._received = bytearray()
        self._is_upgraded = False
        self.name: str | None = None
        """The name that the client sends."""
        self.frame_bytes = 0
        """Length of the last reply, from its frame."""

    # Messages.

    def send(self, name: bytes, *fields: bytes) -> int:
        """Send a call without waiting for its reply, and return its seqid."""
        self._seqid += 1
        before = request_header(self.name) if self._is_upgraded else b""
        header = binary.header(name, binary.CALL, self._seqid, self._is_strict)
        self.send_bytes(binary.frame(before, header, *fields, binary.END))
        return self._seqid

    def upgrade(self, name: str | None = None) -> None:
        """Ask for Finagle's headers, and send this name from now on."""
        self.send(b"__can__finagle__trace__v3__")
        self._nothing()
        self._is_upgraded = True
        self.name = name

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes."""
        self._client.send(data)

    def replies(self) -> list[Reply]:
        """Let the server finish and return the new replies. An incomplete reply is a failure."""
        self._received += self._client.take()
        replies = []
        while self._received:
            self.frame_bytes = int.from_bytes(self._received[:4], "big")
            frame = bytes(self._received[4 : 4 + self.frame_bytes])
            assert len(frame) == self.frame_bytes, "the reply is incomplete"
            del self._received[: 4 + self.frame_bytes]
            replies.append(_reply_in(without_header(frame) if self._is_upgraded else frame))
        return replies

    def reply(self) -> Reply | None:
        """Return the only new reply, or None."""
        replies = self.replies()
        assert len(replies) <= 1, replies
        return replies[0] if replies else None

    def result(self) -> object:
        """Return the result of the pending call. Raises `Refused` if it failed."""
        reply = self.reply()
        assert reply is not None, "there is no reply yet"
        assert reply.seqid == self._seqid
        if isinstance(reply.result, Refused):
            raise reply.result
        return reply.result

    def taken(self) -> list[Taken]:
        """Return the items of the pending get."""
        result = self.result()
        assert isinstance(result, list)
        return result

    def waits(self) -> bool:
        """Return True if no reply has come since the last check."""
        return self.reply() is None

    def stop_reading(self) -> None:
        """Stop reading."""
        self._client.reads = False

    def resume_reading(self) -> None:
        """Read again."""
        self._client.reads = True

    def half_close(self) -> None:
        """Close the sending side, and go on reading."""
        self._client.half_close()

    def disconnect(self) -> None:
        """Close the connection."""
        self._client.disconnect()

    @property
    def is_closed(self) -> bool:
        """True if the connection is closed."""
        return self._client.is_closed

    # Calls with immediate replies.

    def put(self, queue: bytes, *items: bytes, expiry_ms: int | None = None) -> int:
        """Put items and return how many were stored. Without `expiry_ms` the argument is left out."""
        self.send_put(queue, *items, expiry_ms=expiry_ms)
        return self._number()

    def get(self, queue: bytes, max_items: int, wait_ms: int = 0, auto_abort_ms: int = 0) -> list[Taken]:
        """Return the taken items."""
        self.send_get(queue, max_items, wait_ms, auto_abort_ms)
        return self.taken()

    def items(self, queue: bytes, max_items: int = -1) -> list[bytes]:
        """Take items without opening reads, and return their data."""
        taken = self.get(queue, max_items)
        assert all(each.id == 0 for each in taken)
        return data_of(taken)

    def confirm(self, queue: bytes, *ids: int) -> int:
        """Return how many of the reads were open."""
        self.send_ids(b"confirm", queue, ids)
        return self._number()

    def abort(self, queue: bytes, *ids: int) -> int:
        """Return how many of the reads were open."""
        self.send_ids(b"abort", queue, ids)
        return self._number()

    def peek(self, queue: bytes) -> QueueInfo:
        """Return information about a queue and its head."""
        self.send(b"peek", binary.binary_field(1, queue))
        result = self.result()
        assert isinstance(result, QueueInfo)
        return result

    def flush_queue(self, queue: bytes) -> None:
        """Drop the items of a queue."""
        self.send(b"flush_queue", binary.binary_field(1, queue))
        self._nothing()

    def flush_all_queues(self) -> None:
        """Drop the items of all queues."""
        self.send(b"flush_all_queues")
        self._nothing()

    def list_queues(self) -> list[bytes]:
        """Return the names of all queues."""
        self.send(b"list_queues")
        names = self.result()
        assert isinstance(names, list)
        return names

    def delete_queue(self, queue: bytes) -> None:
        """Delete a queue."""
        self.send(b"delete_queue", binary.binary_field(1, queue))
        self._nothing()

    def current_status(self) -> int:
        """Return the number of the status."""
        self.send(b"current_status")
        return self._number()

    def set_status(self, status: int) -> None:
        """Change the status."""
        self.send(b"set_status", binary.i32_field(1, status))
        self._nothing()

    def get_version(self) -> bytes:
        """Return the server's version."""
        self.send(b"get_version")
        version = self.result()
        assert isinstance(version, bytes)
        return version

    # Calls without waiting for the reply.

    def send_put(self, queue: bytes, *items: bytes, expiry_ms: int | None = None) -> int:
        """Send a call of `put`."""
        return self.send(
            b"put",
            binary.binary_field(1, queue),
            binary.list_field(2, binary.STRING, len(items)) + b"".join(map(binary.binary, items)),
            b"" if expiry_ms is None else binary.i32_field(3, expiry_ms),
        )

    def send_get(self, queue: bytes, max_items: int, wait_ms: int = 0, auto_abort_ms: int = 0) -> int:
        """Send a call of `get`."""
        return self.send(
            b"get",
            binary.binary_field(1, queue),
            binary.i32_field(2, max_items),
            binary.i32_field(3, wait_ms),
            binary.i32_field(4, auto_abort_ms),
        )

    def send_ids(self, name: bytes, queue: bytes, ids: Sequence[int]) -> int:
        """Send a call of `confirm` or `abort`; an id may occur twice."""
        elements = b"".join(map(binary.i64, ids))
        return self.send(name, binary.binary_field(1, queue), binary.set_field(2, binary.I64, len(ids)) + elements)

    def _number(self) -> int:
        number = self.result()
        assert isinstance(number, int)
        return number

    def _nothing(self) -> None:
        result = self.result()
        assert result is None, result


def data_of(taken: Iterable[Taken]) -> list[bytes]:
    """Return the data of the items."""
    return [each.data for each in taken]


def ids_of(taken: Iterable[Taken]) -> list[int]:
    """Return the ids of the open reads."""
    return [each.id for each in taken]


# Replies.


def _reply_in(frame: bytes) -> Reply:
    reader = binary.ThriftReader(frame)
    header = reader.header()
    result: object
    if header.type == binary.EXCEPTION:
        result = Refused(*binary.read_application_exception(reader))
    else:
        assert header.type == binary.REPLY, header
        result = _result(reader)
    assert reader.remaining_bytes == 0, "there are bytes behind the reply"
    return Reply(header.name, header.seqid, result, header.is_strict)


def _result(reader: binary.ThriftReader) -> object:
    """Return field 0 of a result struct, or None. Other fields are an error."""
    type_, id_ = reader.field()
    if type_ == binary.STOP:
        return None
    assert id_ == 0
    result = _value(reader, type_)
    assert reader.field()[0] == binary.STOP
    return result


def _value(reader: binary.ThriftReader, type_: int) -> object:
    if type_ == binary.I32:
        return reader.i32()
    if type_ == binary.STRING:
        return reader.binary()
    if type_ == binary.STRUCT:
        info = _fields(reader)
        head = info.pop(1, None)
        assert head is None or isinstance(head, bytes)
        return QueueInfo(head, *(_int(info[id_]) for id_ in range(2, 8)))
    assert type_ == binary.LIST
    element_type, count = reader.list_header()
    if element_type == binary.STRING:
        return reader.binaries(count)
    assert element_type == binary.STRUCT
    return [_item(_fields(reader)) for _ in range(count)]


def _item(fields: dict[int, object]) -> Taken:
    data = fields[1]
    assert isinstance(data, bytes)
    return Taken(data, _int(fields[2]))


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _fields(reader: binary.ThriftReader) -> dict[int, object]:
    values: dict[int, object] = {}
    readers = {binary.STRING: reader.binary, binary.I32: reader.i32, binary.I64: reader.i64}
    while (field := reader.field())[0] != binary.STOP:
        values[field[1]] = readers[field[0]]()
    return values

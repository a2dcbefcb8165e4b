"""A thrift client over a connection in memory: calls of Kestrel's service as methods, replies as values.

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

NOT_CONFIGURED: Final = 0
QUIESCENT: Final = 1
READ_ONLY: Final = 2
UP: Final = 3

LONG_MS: Final = 3_600_000
"""An auto-abort that comes in no test."""


class Taken(NamedTuple):
    """An item of a get: what was put, and the id that confirm and abort want."""

    data: bytes
    id: int


class Refused(Exception):
    """The TApplicationException of a call: its type and its message."""

    def __init__(self, type_: int, message: str) -> None:
        super().__init__(type_, message)
        self.type = type_
        self.message = message


class Reply(NamedTuple):
    """One message from the server: its header, and what the method returned or was refused with.

    `result` is an int, bytes, a `QueueInfo`, a list of `Taken`, a `Refused`, or None where nothing is returned.
    """

    name: bytes
    seqid: int
    result: object
    is_strict: bool = True


class ThriftClient:
    """One connection that speaks thrift. A call that is answered with an exception raises `Refused`.

    `upgrade` makes it one as Finagle's clients have; each call then says `name`.
    """

    def __init__(self, server: MemoryServer, *, is_strict: bool = True) -> None:
        self._client = server.connect("thrift")
        self._is_strict = is_strict
        self._seqid = 0
        self._received = bytearray()
        self._is_upgraded = False
        self.name: str | None = None
        """What the client calls itself."""
        self.frame_bytes = 0
        """The length of the last reply, as its frame says it."""

    # Messages.

    def send(self, name: bytes, *fields: bytes) -> int:
        """Call a method and wait for nothing; the call's seqid."""
        self._seqid += 1
        before = request_header(self.name) if self._is_upgraded else b""
        header = binary.header(name, binary.CALL, self._seqid, self._is_strict)
        self.send_bytes(binary.frame(before, header, *fields, binary.END))
        return self._seqid

    def upgrade(self, name: str | None = None) -> None:
        """Ask for Finagle's headers, and call itself that from now on."""
        self.send(b"__can__finagle__trace__v3__")
        self._nothing()
        self._is_upgraded = True
        self.name = name

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._client.send(data)

    def replies(self) -> list[Reply]:
        """What has come since the last look, when the server has come to rest. Half a reply is a failure."""
        self._received += self._client.take()
        replies = []
        while self._received:
            self.frame_bytes = int.from_bytes(self._received[:4], "big")
            frame = bytes(self._received[4 : 4 + self.frame_bytes])
            assert len(frame) == self.frame_bytes, "a reply came in part"
            del self._received[: 4 + self.frame_bytes]
            replies.append(_reply_in(without_header(frame) if self._is_upgraded else frame))
        return replies

    def reply(self) -> Reply | None:
        """The one reply that has come since the last look, or None."""
        replies = self.replies()
        assert len(replies) <= 1, replies
        return replies[0] if replies else None

    def result(self) -> object:
        """What the call that is under way was answered; raises what it was refused with."""
        reply = self.reply()
        assert reply is not None, "there is no answer yet"
        assert reply.seqid == self._seqid
        if isinstance(reply.result, Refused):
            raise reply.result
        return reply.result

    def taken(self) -> list[Taken]:
        """What a get that is under way was answered."""
        result = self.result()
        assert isinstance(result, list)
        return result

    def waits(self) -> bool:
        """Whether nothing has come since the last look."""
        return self.reply() is None

    def stop_reading(self) -> None:
        """Read nothing any more."""
        self._client.reads = False

    def read_on(self) -> None:
        """Read again."""
        self._client.reads = True

    def half_close(self) -> None:
        """Send nothing any more, and go on reading."""
        self._client.half_close()

    def disconnect(self) -> None:
        """Be gone."""
        self._client.disconnect()

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._client.is_closed

    # Calls that are answered at once.

    def put(self, queue: bytes, *items: bytes, expiry_ms: int | None = None) -> int:
        """How many went in; without `expiry_ms` the argument is left out."""
        self.send_put(queue, *items, expiry_ms=expiry_ms)
        return self._number()

    def get(self, queue: bytes, max_items: int, wait_ms: int = 0, auto_abort_ms: int = 0) -> list[Taken]:
        """What was taken."""
        self.send_get(queue, max_items, wait_ms, auto_abort_ms)
        return self.taken()

    def items(self, queue: bytes, max_items: int = -1) -> list[bytes]:
        """The data of what was taken for good."""
        taken = self.get(queue, max_items)
        assert all(each.id == 0 for each in taken)
        return data_of(taken)

    def confirm(self, queue: bytes, *ids: int) -> int:
        """How many were open."""
        self.send_ids(b"confirm", queue, ids)
        return self._number()

    def abort(self, queue: bytes, *ids: int) -> int:
        """How many were open."""
        self.send_ids(b"abort", queue, ids)
        return self._number()

    def peek(self, queue: bytes) -> QueueInfo:
        """The queue at a glance."""
        self.send(b"peek", binary.binary_field(1, queue))
        result = self.result()
        assert isinstance(result, QueueInfo)
        return result

    def flush_queue(self, queue: bytes) -> None:
        """Drop its items."""
        self.send(b"flush_queue", binary.binary_field(1, queue))
        self._nothing()

    def flush_all_queues(self) -> None:
        """Drop the items of all queues."""
        self.send(b"flush_all_queues")
        self._nothing()

    def delete_queue(self, queue: bytes) -> None:
        """Forget it."""
        self.send(b"delete_queue", binary.binary_field(1, queue))
        self._nothing()

    def current_status(self) -> int:
        """Its number."""
        self.send(b"current_status")
        return self._number()

    def set_status(self, status: int) -> None:
        """Change it."""
        self.send(b"set_status", binary.i32_field(1, status))
        self._nothing()

    def get_version(self) -> bytes:
        """The server's release."""
        self.send(b"get_version")
        version = self.result()
        assert isinstance(version, bytes)
        return version

    # Calls that are sent alone.

    def send_put(self, queue: bytes, *items: bytes, expiry_ms: int | None = None) -> int:
        """The call of `put`."""
        return self.send(
            b"put",
            binary.binary_field(1, queue),
            binary.list_field(2, binary.STRING, len(items)) + b"".join(map(binary.binary, items)),
            b"" if expiry_ms is None else binary.i32_field(3, expiry_ms),
        )

    def send_get(self, queue: bytes, max_items: int, wait_ms: int = 0, auto_abort_ms: int = 0) -> int:
        """The call of `get`."""
        return self.send(
            b"get",
            binary.binary_field(1, queue),
            binary.i32_field(2, max_items),
            binary.i32_field(3, wait_ms),
            binary.i32_field(4, auto_abort_ms),
        )

    def send_ids(self, name: bytes, queue: bytes, ids: Sequence[int]) -> int:
        """The call of `confirm` or `abort`; an id may stand there twice."""
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
    """What was put."""
    return [each.data for each in taken]


def ids_of(taken: Iterable[Taken]) -> list[int]:
    """The numbers of the open reads."""
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
    """The field 0 of a result struct, if there is one; there is no other."""
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

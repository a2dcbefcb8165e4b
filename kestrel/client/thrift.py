"""Kestrel's thrift service for clients: a `Call` for every method, in the framed binary protocol.

A refusal is a TApplicationException. The server uses type 6 for every request that it understands. It becomes a
`ServerError`, unless its text says that the request is too large. All other refusals become `RequestError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

from kestrel.client.arguments import check_item
from kestrel.client.call import Call, Reply
from kestrel.client.errors import BadReply, RequestError, ServerError
from kestrel.names import check_queue_name
from kestrel.protocols import thrift_binary as binary
from kestrel.protocols.codec import QueueInfo, RangeState
from kestrel.protocols.memcache import MAX_ITEM_BYTES

T = TypeVar("T")

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024

_LARGEST: Final = (1 << 31) - 1
"""Largest i32."""

STATUSES: Final = ("NotConfigured", "Quiescent", "ReadOnly", "Up")
"""The statuses of the service; their positions are their numbers. The first represents all other statuses."""

_STATUS_NUMBERS: Final = {status.upper(): number for number, status in enumerate(STATUSES) if number}

_REFUSED: Final = (binary.STRUCT, 1)
"""Field of the exception in a result of the range methods."""

_TOO_LARGE: Final = ("item too large", "frame too large", "too many items")
"""Prefixes of the server's messages for a request that can never succeed."""


class OpenRead(NamedTuple):
    """An item that was taken. `id` is used to confirm it; it is 0 if the item was removed without an open read."""

    data: bytes
    id: int = 0


class RangeItem(NamedTuple):
    """An item read by its id. Times are ms since the epoch; an `expiry_ms` of 0 is never."""

    id: int
    data: bytes
    add_ms: int
    expiry_ms: int


class ThriftCalls:
    """A maker of the calls of one connection. It numbers them to match replies to requests.

    Invalid queue names raise `kestrel.errors.BadQueueName`. Numbers that the protocol cannot express, items of more
    than `max_item_bytes` and requests of more than `max_frame_bytes` raise `RequestError`. A longer reply raises
    `BadReply`.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, *, max_item_bytes: int = MAX_ITEM_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._max_item_bytes = max_item_bytes
        self._numbers = count(1)

    # Items.

    def put(self, queue: bytes, items: Sequence[bytes], expiry_ms: int = 0, delay_ms: int = 0) -> Call[int]:
        """Put items in order, until a limit of the queue refuses one. The value is the number of stored items.

        `expiry_ms` counts from now; 0 is never. With `delay_ms`, the items become visible after that time.
        """
        for data in items:
            check_item(data)
            if len(data) > self._max_item_bytes:
                raise RequestError(f"item too large; limit={self._max_item_bytes}")
        arguments = [
            _name(queue),
            binary.list_field(2, binary.STRING, len(items)),
            *map(binary.binary, items),
            *([_i64(3, delay_ms), _i32(4, expiry_ms)] if delay_ms else [_i32(3, expiry_ms)]),
        ]
        method = b"put_delayed" if delay_ms else b"put"
        return self._call(method, arguments, binary.I32, partial(_count, most=len(items)))

    def get(self, queue: bytes, max_items: int, wait_ms: int = 0, hold_ms: int = 0) -> Call[list[OpenRead]]:
        """Get up to `max_items`. The server answers as soon as it has that many, or after `wait_ms` with the items that
        it has.

        With `hold_ms` they are open reads, which return to the head of the queue unless they are confirmed within that
        time. They do not depend on the connection.
        """
        arguments = [_name(queue), _i32(2, max_items), _i32(3, wait_ms), _i32(4, hold_ms)]
        read = partial(_items, most=max(0, max_items))
        return self._call(b"get", arguments, binary.LIST, read, wait_ms=max(0, wait_ms))

    def confirm(self, queue: bytes, ids: Collection[int]) -> Call[int]:
        """Finish open reads. The value is the number that were open."""
        return self._call(b"confirm", [_name(queue), _ids(2, ids)], binary.I32, partial(_count, most=len(ids)))

    def abort(self, queue: bytes, ids: Collection[int]) -> Call[int]:
        """Return open reads to the head of the queue. The value is the number that were open."""
        return self._call(b"abort", [_name(queue), _ids(2, ids)], binary.I32, partial(_count, most=len(ids)))

    # Items by their ids: an extension of this server. The original Kestrel answers with a `RequestError`.

    def open_range(self, queue: bytes, reader: bytes, first_id: int = 0, max_items: int = 0) -> Call[RangeState]:
        """Make the server keep the queue's items for a reader until it releases them, and get the reader's position.

        At most `max_items` (0: all) are between `first_id` (0: the first that is not released) and `end_id` of the
        answer. The call can be repeated at any time. A `first_id` above 0 only continues a range that is open. Raises
        `RequestError` if it is not open, if the queue's storage has no ids, if another reader has the queue, or if
        `first_id` was released.
        """
        arguments = [_name(queue), binary.binary_field(2, reader), _i64(3, first_id), _i32(4, max_items)]
        return self._call(b"open_range", arguments, binary.STRUCT, _range_state)

    def read_range(
        self, queue: bytes, reader: bytes, first_id: int, end_id: int, max_bytes: int
    ) -> Call[list[RangeItem]]:
        """Read the items from `first_id` up to but excluding `end_id`, in order. The same call has the same answer
        until the items are released.

        If they exceed `max_bytes` or one reply, only the first ones are returned, at least one: continue after the
        last. Raises `RequestError` if items were released or are missing, or if they belong to another reader.
        """
        arguments = [
            _name(queue),
            binary.binary_field(2, reader),
            _i64(3, first_id),
            _i64(4, end_id),
            _i32(5, max_bytes),
        ]
        return self._call(b"read_range", arguments, binary.LIST, partial(_range_items, first_id, end_id))

    def release_range(self, queue: bytes, reader: bytes, end_id: int) -> Call[RangeState]:
        """Remove all items below `end_id` for all clients, including open reads. Can be repeated.

        Raises `RequestError` if some of the items are not there, or if the reader has no open range of the queue.
        """
        arguments = [_name(queue), binary.binary_field(2, reader), _i64(3, end_id)]
        return self._call(b"release_range", arguments, binary.STRUCT, _range_state)

    def close_range(self, queue: bytes, reader: bytes) -> Call[None]:
        """Make the server stop keeping items for a reader. Does nothing if no range of the queue is open.

        Raises `RequestError` if another reader has the queue, or if there is no such queue.
        """
        return self._void(b"close_range", [_name(queue), binary.binary_field(2, reader)])

    # Queues.

    def peek(self, queue: bytes) -> Call[QueueInfo]:
        """Get the head of the queue without removing it, and some statistics."""
        return self._call(b"peek", [_name(queue)], binary.STRUCT, _queue_info)

    def list_queues(self) -> Call[list[bytes]]:
        """Get the names of all queues, sorted. An extension: the original Kestrel answers with a `RequestError`."""
        return self._call(b"list_queues", [], binary.LIST, _names)

    def flush(self, queue: bytes) -> Call[None]:
        """Drop all items of the queue, except open reads."""
        return self._void(b"flush_queue", [_name(queue)])

    def flush_all(self) -> Call[None]:
        """Drop all items of all queues, except open reads."""
        return self._void(b"flush_all_queues", [])

    def delete(self, queue: bytes) -> Call[None]:
        """Delete the queue and its items."""
        return self._void(b"delete_queue", [_name(queue)])

    # The server.

    def status(self) -> Call[str]:
        """Get the server's status, one of `STATUSES`."""
        return self._call(b"current_status", [], binary.I32, _status)

    def set_status(self, status: str) -> Call[None]:
        """Set the server's status: Quiescent, ReadOnly or Up, in upper or lower case."""
        number = _STATUS_NUMBERS.get(status.upper())
        if number is None:
            raise RequestError(f"thrift has no status {status!r}; it has {', '.join(STATUSES[1:])}")
        return self._void(b"set_status", [_i32(1, number)])

    def version(self) -> Call[str]:
        """Get the server's release."""
        return self._call(b"get_version", [], binary.STRING, _text)

    # Requests and replies.

    def _call(
        self,
        method: bytes,
        arguments: Sequence[bytes],
        type_: int | None,
        read: Callable[[binary.ThriftReader], T],
        *,
        wait_ms: int = 0,
    ) -> Call[T]:
        """Return a call whose result has a value of type `type_`, or none if that is None."""
        number = next(self._numbers) & _LARGEST
        request = binary.frame(binary.header(method, binary.CALL, number), *arguments, binary.END)
        if len(request) > self._max_frame_bytes:
            raise RequestError(f"the request is too large; limit={self._max_frame_bytes}")
        return Call(request, self._reply(method, number, type_, read), wait_ms=wait_ms)

    def _void(self, method: bytes, arguments: Sequence[bytes]) -> Call[None]:
        return self._call(method, arguments, None, lambda _: None)

    def _frame(self, method: bytes, number: int) -> Reply[binary.ThriftReader]:
        """Read the frame of a reply, up to the fields of its result."""
        size = int.from_bytes((yield binary.LENGTH_BYTES), "big", signed=True)
        if not 0 <= size <= self._max_frame_bytes:
            raise BadReply(f"the frame has {size} bytes; limit={self._max_frame_bytes}")
        reader = binary.ThriftReader((yield size))
        header = reader.header()
        if (header.name, header.seqid) != (method, number):
            raise BadReply("the reply belongs to another request")
        if header.type == binary.EXCEPTION:
            type_, message = binary.read_application_exception(reader)
            may_do_later = type_ == binary.INTERNAL_ERROR and not message.startswith(_TOO_LARGE)
            raise (ServerError if may_do_later else RequestError)(message)
        if header.type != binary.REPLY:
            raise BadReply("the message is not a reply")
        return reader

    def _reply(
        self, method: bytes, number: int, type_: int | None, read: Callable[[binary.ThriftReader], T]
    ) -> Reply[T]:
        try:
            reader = yield from self._frame(method, number)
            field = _first_field(reader)
            if type_ is not None and field != (type_, 0):
                raise BadReply("the result has the wrong type")
            value = read(reader)
            _finish(reader, field[0] if type_ is None else reader.field()[0])
        except binary.BadThrift as error:
            raise BadReply(str(error)) from None
        return value


def _first_field(reader: binary.ThriftReader) -> tuple[int, int]:
    """Return the type and id of a result's first field. Raises `RequestError` if a range method was refused."""
    field = reader.field()
    if field == _REFUSED:
        raise RequestError(_fields(reader, {1: binary.STRING}).get(1, b"").decode("utf-8", "replace"))
    return field


def _finish(reader: binary.ThriftReader, type_: int) -> None:
    """Skip the rest of a result, whose next field has the type `type_`."""
    while type_ != binary.STOP:
        reader.skip(type_)
        type_ = reader.field()[0]
    if reader.remaining_bytes:
        raise BadReply("there are bytes after the end of the message")


def _name(queue: bytes) -> bytes:
    check_queue_name(queue)
    return binary.binary_field(1, queue)


def _i32(id_: int, number: int) -> bytes:
    if not -_LARGEST <= number <= _LARGEST:
        raise RequestError(f"{number} is out of range")
    return binary.i32_field(id_, number)


def _i64(id_: int, number: int) -> bytes:
    if not -(1 << 63) <= number < 1 << 63:
        raise RequestError(f"{number} is out of range")
    return binary.i64_field(id_, number)


def _ids(id_: int, ids: Collection[int]) -> bytes:
    return binary.set_field(id_, binary.I64, len(ids)) + b"".join(map(binary.i64, ids))


def _text(reader: binary.ThriftReader) -> str:
    return reader.binary().decode("utf-8", "replace")


def _list_size(reader: binary.ThriftReader, element_type: int, most: int | None = None) -> int:
    """Read the header of a list, and return its size. Raises `BadReply` for another type or too many elements."""
    type_, size = reader.list_header()
    if most is not None and size > most:
        raise BadReply(f"the reply has {size} items; limit={most}")
    if size and type_ != element_type:
        raise BadReply("the result has the wrong type")
    return size


def _names(reader: binary.ThriftReader) -> list[bytes]:
    return reader.binaries(_list_size(reader, binary.STRING))


def _status(reader: binary.ThriftReader) -> str:
    number = reader.i32()
    return STATUSES[number] if 0 <= number < len(STATUSES) else STATUSES[0]


def _count(reader: binary.ThriftReader, *, most: int) -> int:
    number = reader.i32()
    if not 0 <= number <= most:
        raise BadReply(f"the reply has a count of {number}; limit={most}")
    return number


def _items(reader: binary.ThriftReader, *, most: int) -> list[OpenRead]:
    size = _list_size(reader, binary.STRUCT, most)  # checked first: an empty item is one byte, and many in memory
    items = []
    data = reader.data
    for _ in range(size):
        start = reader.position
        try:
            data_tag, length = _ITEM_HEAD.unpack_from(data, start)
            begin = start + _ITEM_HEAD.size
            end = begin + length
            id_tag, id_, stop = _ITEM_TAIL.unpack_from(data, end)
            is_usual = (data_tag, id_tag, stop) == _ITEM_TAGS and length >= 0
        except struct.error:
            is_usual = False
        if is_usual:
            items.append(OpenRead(data[begin:end], id_))
            reader.position = end + _ITEM_TAIL.size
        else:
            items.append(_item(reader))
    return items


# A reply has thousands of items. These are the layouts that the server writes: the tags of fields, and values. Structs
# with other fields, or in another order, are read field by field, which is slower.

_STOP: Final = bytes([binary.STOP])

_ITEM_HEAD: Final = struct.Struct(">3si")
_ITEM_TAIL: Final = struct.Struct(">3sqc")
_ITEM_TAGS: Final = (binary.field_tag(binary.STRING, 1), binary.field_tag(binary.I64, 2), _STOP)

_RANGE_ITEM_HEAD: Final = struct.Struct(">3sq3si")
_RANGE_ITEM_TAIL: Final = struct.Struct(">3sq3sqc")
_RANGE_ITEM_TAGS: Final = (
    binary.field_tag(binary.I64, 1),
    binary.field_tag(binary.STRING, 2),
    binary.field_tag(binary.I64, 3),
    binary.field_tag(binary.I64, 4),
    _STOP,
)


def _item(reader: binary.ThriftReader) -> OpenRead:
    fields = _fields(reader, {1: binary.STRING, 2: binary.I64})
    return OpenRead(fields.get(1, b""), fields.get(2, 0))


_QUEUE_INFO: Final = {1: binary.STRING, **dict.fromkeys((2, 3, 4, 5), binary.I64), 6: binary.I32, 7: binary.I32}


def _queue_info(reader: binary.ThriftReader) -> QueueInfo:
    fields = _fields(reader, _QUEUE_INFO)
    return QueueInfo(fields.get(1), *[fields.get(id_, 0) for id_ in range(2, 8)])


def _range_state(reader: binary.ThriftReader) -> RangeState:
    fields = _fields(reader, dict.fromkeys((1, 2, 3), binary.I64))
    return RangeState(*[fields.get(id_, 0) for id_ in (1, 2, 3)])


def _range_items(first_id: int, end_id: int, reader: binary.ThriftReader) -> list[RangeItem]:
    size = _list_size(reader, binary.STRUCT)
    items = []
    data = reader.data
    for _ in range(size):
        start = reader.position
        try:
            id_tag, id_, data_tag, length = _RANGE_ITEM_HEAD.unpack_from(data, start)
            begin = start + _RANGE_ITEM_HEAD.size
            end = begin + length
            add_tag, add_ms, expiry_tag, expiry_ms, stop = _RANGE_ITEM_TAIL.unpack_from(data, end)
            is_usual = (id_tag, data_tag, add_tag, expiry_tag, stop) == _RANGE_ITEM_TAGS and length >= 0
        except struct.error:
            is_usual = False
        if is_usual:
            item = RangeItem(id_, data[begin:end], add_ms, expiry_ms)
            reader.position = end + _RANGE_ITEM_TAIL.size
        else:
            item = _range_item(reader)
        if not first_id <= item.id < end_id:
            raise BadReply("the reply has items outside the requested range")
        first_id = item.id + 1
        items.append(item)
    return items


def _range_item(reader: binary.ThriftReader) -> RangeItem:
    fields = _fields(reader, {1: binary.I64, 2: binary.STRING, 3: binary.I64, 4: binary.I64})
    return RangeItem(fields.get(1, 0), fields.get(2, b""), fields.get(3, 0), fields.get(4, 0))


def _fields(reader: binary.ThriftReader, types: Mapping[int, int]) -> dict[int, Any]:
    """Read a struct. Return the values of the fields that have these types, by id. Other fields are skipped."""
    values: dict[int, Any] = {}
    while (field := reader.field())[0] != binary.STOP:
        type_, id_ = field
        if types.get(id_) != type_:
            reader.skip(type_)
        elif type_ == binary.STRING:
            values[id_] = reader.binary()
        else:
            values[id_] = reader.i64() if type_ == binary.I64 else reader.i32()
    return values

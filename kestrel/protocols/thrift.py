"""The codec of Kestrel's thrift service.

kestrel.thrift, next to this file, describes the methods. Messages are framed, in thrift's binary protocol. A reply has
the form of its request, strict or not. A refused request is answered with a TApplicationException. Messages of
Finagle's clients may begin with a header.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from kestrel import commands, errors
from kestrel.item import Item
from kestrel.protocols import thrift_binary as binary
from kestrel.protocols.codec import Codec, QueueInfo, RangeState

DEFAULT_CLIENT_MAX_FRAME_BYTES: Final = 16_384_000
"""Frame limit of Apache thrift's libraries by default. A client that refuses a reply loses its items."""

# Finagle's clients add headers to messages. Such a client first calls a method that no service has. If the server
# answers it, the connection is upgraded. From then on each frame of the client begins with a `RequestHeader`, and each
# of the server with a `ResponseHeader`. Both are structs of Finagle's tracing.thrift. Only the client's name is used.

UPGRADE_METHOD: Final = b"__can__finagle__trace__v3__"

RESPONSE_HEADER: Final = binary.END
"""A header without spans and contexts."""

MAX_REQUEST_HEADER_BYTES: Final = 1024
"""Limit of bytes read of a frame that is too large, to find the message after the header."""

MAX_CLIENT_ID_BYTES: Final = 256
"""Limit of a client name. A longer name is ignored."""

_CLIENT_ID: Final = (binary.STRUCT, 6)
_NAME: Final = (binary.STRING, 1)

_REPLY_OVERHEAD_BYTES: Final = len(RESPONSE_HEADER) + binary.MAX_HEADER_BYTES + 16
"""Upper bound of the bytes around the items of a reply."""

_STATUS_NUMBERS: Final = {"Quiescent": 1, "ReadOnly": 2, "Up": 3}
_NOT_CONFIGURED: Final = 0
"""The number for a status that the enum does not have."""

_STATUS_NAMES: Final = {number: name.encode("ascii") for name, number in _STATUS_NUMBERS.items()}


class ThriftCall(NamedTuple):
    """The data of a request that its reply repeats. `exception_type` is the type of the TApplicationException of a
    refusal.

    With `is_upgraded`, the request had a header of Finagle's, and so must the reply.
    """

    name: bytes = b""
    seqid: int = 0
    is_strict: bool = True
    exception_type: int = binary.INTERNAL_ERROR
    is_upgraded: bool = False


_NO_CALL: Final = ThriftCall()
_NO_UPGRADED_CALL: Final = ThriftCall(is_upgraded=True)


def read_request_header(reader: binary.ThriftReader) -> bytes | None:
    """Read a `RequestHeader`, and return the client's name in it, or None. Raises `BadThrift`."""
    name = None
    while (field := reader.field())[0] != binary.STOP:
        if field == _CLIENT_ID:
            name = _read_client_id(reader)
        else:
            reader.skip(field[0])
    return name


def _read_client_id(reader: binary.ThriftReader) -> bytes | None:
    name = None
    while (field := reader.field())[0] != binary.STOP:
        if field == _NAME:
            name = reader.binary()
        else:
            reader.skip(field[0])
    return name if name is not None and len(name) <= MAX_CLIENT_ID_BYTES else None


class _UnacceptableCall(Exception):
    """A well-formed request that is refused, with the reason."""


class ThriftCodec(Codec):
    """The thrift codec of one connection (`kestrel.protocols.codec.Codec`).

    It holds at most a frame and one network read after it.
    """

    def __init__(self, max_frame_bytes: int, max_item_bytes: int, max_list_size: int) -> None:
        super().__init__()
        self._max_frame_bytes = max_frame_bytes
        self._max_item_bytes = max_item_bytes
        self._max_list_size = max_list_size
        self._frame_bytes: int | None = None
        """Length of the incomplete frame, once it is known."""
        self._oversized_frame_head: bytes | None = None
        """The beginning of a refused frame, until its header is complete."""
        self._is_upgraded = False
        """Whether each message begins with a header of Finagle's."""
        self.max_reply_items = max_list_size
        self.max_reply_bytes = min(max_frame_bytes, DEFAULT_CLIENT_MAX_FRAME_BYTES) - _REPLY_OVERHEAD_BYTES

    # Bytes to commands.

    def __len__(self) -> int:
        return self.buffer.size or int(self._frame_bytes is not None)

    def end(self) -> None:
        super().end()
        self._frame_bytes = self._oversized_frame_head = None

    def next_command(self) -> commands.Command | None:
        if self._oversized_frame_head is not None:
            return self._refuse_frame(self._oversized_frame_head)
        if self._frame_bytes is None:
            length = self.buffer.take(binary.LENGTH_BYTES)
            if length is None:
                return None
            self._frame_bytes = int.from_bytes(length, "big", signed=True)
            if not 0 <= self._frame_bytes <= self._max_frame_bytes:
                return self._refuse_frame(b"")
        frame = self.buffer.take(self._frame_bytes)
        if frame is None:
            return None
        self._frame_bytes = None
        return self._message(binary.ThriftReader(frame))

    def _refuse_frame(self, beginning: bytes) -> commands.Malformed | None:
        """Refuse a frame that is too large. Only its header is read, so that it can be answered."""
        most = binary.MAX_HEADER_BYTES + (MAX_REQUEST_HEADER_BYTES if self._is_upgraded else 0)
        beginning += self.buffer.take(min(most - len(beginning), self.buffer.size)) or b""
        reader = binary.ThriftReader(beginning)
        try:
            if self._is_upgraded:
                read_request_header(reader)
            call = self._call_of(reader.header())
        except binary.TruncatedThrift:
            if len(beginning) < most:
                self._oversized_frame_head = beginning
                return None
            call = self._no_call
        except binary.BadThrift:
            call = self._no_call
        return self._out_of_step(call, f"frame too large; limit={self._max_frame_bytes}")

    def _out_of_step(self, call: ThriftCall, reason: str) -> commands.Malformed:
        """Drop the rest of the stream, which cannot be parsed reliably after this error."""
        self.end()
        return _malformed(call, reason, closes=True)

    def _message(self, reader: binary.ThriftReader) -> commands.Command:
        try:
            if self._is_upgraded:
                self.client_id = read_request_header(reader)
            header = reader.header()
        except binary.BadThrift as error:
            return self._out_of_step(self._no_call._replace(exception_type=binary.PROTOCOL_ERROR), str(error))
        call = self._call_of(header)
        if header.type != binary.CALL:
            call = call._replace(exception_type=binary.INVALID_MESSAGE_TYPE)
            return _malformed(call, "the message is not a call")
        method = _METHODS.get(header.name)
        if method is None:
            if header.name == UPGRADE_METHOD and not self._is_upgraded:
                return self._upgrade(call, reader)
            call = call._replace(exception_type=binary.UNKNOWN_METHOD)
            return _malformed(call, f"unknown method: {header.name.decode('utf-8', 'backslashreplace')}")
        arguments, make = method
        try:
            command = make(*self._read(reader, arguments))
        except binary.BadThrift as error:
            return _malformed(call._replace(exception_type=binary.PROTOCOL_ERROR), str(error))
        except _UnacceptableCall as refusal:
            return _malformed(call, str(refusal))
        command.call = call
        return command

    def _upgrade(self, call: ThriftCall, reader: binary.ThriftReader) -> commands.Command:
        """Upgrade the connection. This reply is the last without a header. The call's options are ignored, as none
        exist yet.
        """
        try:
            self._read(reader, ())
        except binary.BadThrift as error:
            return _malformed(call._replace(exception_type=binary.PROTOCOL_ERROR), str(error))
        self._is_upgraded = True
        command = commands.Upgrade()
        command.call = call
        return command

    def _call_of(self, header: binary.MessageHeader) -> ThriftCall:
        return ThriftCall(header.name, header.seqid, header.is_strict, binary.INTERNAL_ERROR, self._is_upgraded)

    @property
    def _no_call(self) -> ThriftCall:
        """The call of a reply to no readable request."""
        return _NO_UPGRADED_CALL if self._is_upgraded else _NO_CALL

    def _read(self, reader: binary.ThriftReader, arguments: Sequence[_Argument]) -> Sequence[Any]:
        """Return the values of the arguments, in order.

        As in generated code, a field with an unknown id or another type is skipped. A repeated field is an error, so
        that one bound holds for all lists of a message together.
        """
        values: dict[int, Any] = {}
        while (field := reader.field())[0] != binary.STOP:
            type_, id_ = field
            if not 0 < id_ <= len(arguments) or arguments[id_ - 1].type != type_:
                reader.skip(type_)
            elif id_ in values:
                raise binary.BadThrift(f"the argument {arguments[id_ - 1].name} is there twice")
            else:
                values[id_] = _ARGUMENT_READERS[type_](self, reader)
        if reader.remaining_bytes:
            raise binary.BadThrift("there are bytes after the end of the message")
        in_order = []
        for id_, argument in enumerate(arguments, start=1):
            value = values.get(id_, argument.default)
            if value is None:
                raise binary.BadThrift(f"the argument {argument.name} is missing")
            in_order.append(value)
        return in_order

    def _items(self, reader: binary.ThriftReader) -> Sequence[bytes]:
        items = reader.binaries(self._count(reader, binary.STRING))
        if any(len(data) > self._max_item_bytes for data in items):
            raise _UnacceptableCall(f"item too large; limit={self._max_item_bytes}")
        return items

    def _ids(self, reader: binary.ThriftReader) -> frozenset[int]:
        return frozenset(reader.i64s(self._count(reader, binary.I64)))

    def _count(self, reader: binary.ThriftReader, element_type: int) -> int:
        type_, count = reader.list_header()
        if count and type_ != element_type:
            raise binary.BadThrift("the elements of a list or set are of the wrong type")
        if count > self._max_list_size:
            raise _UnacceptableCall(f"too many items in one call; limit={self._max_list_size}")
        return count

    # Results to bytes.

    def stored(self, command: commands.Put, count: int) -> bytes:
        return self.number(command, count)

    def number(self, command: commands.Command, value: int) -> bytes:
        return _reply(command, binary.i32_field(0, value))

    def done(self, command: commands.Command) -> bytes:
        return _reply(command)

    def version(self, command: commands.Command, version: str) -> bytes:
        return _reply(command, binary.binary_field(0, version.encode("ascii")))

    def status(self, command: commands.Command, name: str) -> bytes:
        """Return the status as a number of the enum, or NOT_CONFIGURED if the enum does not have it."""
        return _reply(command, binary.i32_field(0, _STATUS_NUMBERS.get(name, _NOT_CONFIGURED)))

    def items(self, command: commands.GetMany, items: Sequence[tuple[bytes, int]]) -> bytes:
        parts = [binary.list_field(0, binary.STRUCT, len(items))]
        for data, id_ in items:
            parts += (binary.binary_field(1, data), binary.i64_field(2, id_), binary.END)
        return _reply(command, *parts)

    def queue_info(self, command: commands.Inspect, info: QueueInfo) -> bytes:
        return _reply(
            command,
            binary.struct_field(0),
            b"" if info.head is None else binary.binary_field(1, info.head),
            binary.i64_field(2, info.items),
            binary.i64_field(3, info.bytes),
            binary.i64_field(4, info.journal_bytes),
            binary.i64_field(5, info.age_ms),
            binary.i32_field(6, info.waiters),
            binary.i32_field(7, info.open_reads),
            binary.END,
        )

    def queue_names(self, command: commands.ListQueues, names: Sequence[bytes]) -> bytes:
        return _reply(command, binary.list_field(0, binary.STRING, len(names)), *map(binary.binary, names))

    def range_state(self, command: commands.RangeCommand, state: RangeState) -> bytes:
        return _reply(
            command,
            binary.struct_field(0),
            binary.i64_field(1, state.first_id),
            binary.i64_field(2, state.next_id),
            binary.i64_field(3, state.end_id),
            binary.END,
        )

    def range_items(self, command: commands.RangeCommand, items: Sequence[tuple[int, Item]]) -> bytes:
        parts = [binary.list_field(0, binary.STRUCT, len(items))]
        for id_, item in items:
            parts += (
                binary.i64_field(1, id_),
                binary.binary_field(2, item.data),
                binary.i64_field(3, item.add_ms),
                binary.i64_field(4, item.expiry_ms),
                binary.END,
            )
        return _reply(command, *parts)

    def error(self, command: commands.Command, error: Exception) -> tuple[bytes, bool]:
        """Return the exception of the range methods for `RangeRefused`, or else a TApplicationException.

        Only an unexpected error closes the connection.
        """
        if isinstance(error, errors.RangeRefused):  # the range methods declare this exception
            refused = binary.binary_field(1, str(error).encode("utf-8", "backslashreplace"))
            return _reply(command, binary.struct_field(1), refused, binary.END), False
        call: ThriftCall = getattr(command, "call", self._no_call)
        is_ours = isinstance(error, errors.KestrelError)
        reason = str(error) if is_ours else "internal error"
        exception = binary.application_exception(call.exception_type, reason)
        return binary.frame(_header(call, binary.EXCEPTION), exception), not is_ours


def _malformed(call: ThriftCall, reason: str, *, closes: bool = False) -> commands.Malformed:
    command = commands.Malformed(reason, closes=closes)
    command.call = call
    return command


def _reply(command: commands.Command, *result: bytes) -> bytes:
    """Return a reply whose result struct has these fields."""
    call: ThriftCall = command.call
    return binary.frame(_header(call, binary.REPLY), *result, binary.END)


def _header(call: ThriftCall, type_: int) -> bytes:
    header = binary.header(call.name, type_, call.seqid, call.is_strict)
    return RESPONSE_HEADER + header if call.is_upgraded else header


def _put(queue: bytes, items: Sequence[bytes], expiry_ms: int) -> commands.Command:
    return commands.Put(queue, items, expiry_ms, True, stops_at_refusal=True)


def _put_delayed(queue: bytes, items: Sequence[bytes], delay_ms: int, expiry_ms: int) -> commands.Command:
    if not 0 < delay_ms <= commands.MAX_DELAY_MS:
        raise _UnacceptableCall(f"delay_msec must be 1 to {commands.MAX_DELAY_MS}")
    return commands.DelayedPut(queue, items, expiry_ms, True, delay_ms, stops_at_refusal=True)


def _set_status(number: int) -> commands.Command:
    name = _STATUS_NAMES.get(number)
    if name is None:
        raise _UnacceptableCall(f"{number} is no status that can be set")
    return commands.Status(name)


class _Argument(NamedTuple):
    """One argument of a method. Without a default it is required."""

    name: str
    type: int
    default: int | None = None


_QUEUE_NAME: Final = _Argument("queue_name", binary.STRING)
_ITEMS: Final = _Argument("items", binary.LIST)
_EXPIRATION: Final = _Argument("expiration_msec", binary.I32, 0)
_IDS: Final = _Argument("ids", binary.SET)
_READER: Final = _Argument("reader", binary.STRING)
_END_ID: Final = _Argument("end_id", binary.I64)

_METHODS: Final[dict[bytes, tuple[tuple[_Argument, ...], Callable[..., commands.Command]]]] = {
    # name: its arguments, whose ids count from 1, and the constructor of the command
    b"put": ((_QUEUE_NAME, _ITEMS, _EXPIRATION), _put),
    b"put_delayed": ((_QUEUE_NAME, _ITEMS, _Argument("delay_msec", binary.I64), _EXPIRATION), _put_delayed),
    b"get": (
        (
            _QUEUE_NAME,
            _Argument("max_items", binary.I32),
            _Argument("timeout_msec", binary.I32, 0),
            _Argument("auto_abort_msec", binary.I32, 0),
        ),
        commands.GetMany,
    ),
    b"confirm": ((_QUEUE_NAME, _IDS), commands.ConfirmIds),
    b"abort": ((_QUEUE_NAME, _IDS), commands.AbortIds),
    b"peek": ((_QUEUE_NAME,), commands.Inspect),
    b"list_queues": ((), commands.ListQueues),
    b"flush_queue": ((_QUEUE_NAME,), commands.Flush),
    b"flush_all_queues": ((), commands.FlushAll),
    b"delete_queue": ((_QUEUE_NAME,), commands.Delete),
    b"open_range": (
        (_QUEUE_NAME, _READER, _Argument("first_id", binary.I64, 0), _Argument("max_items", binary.I32, 0)),
        commands.OpenRange,
    ),
    b"read_range": (
        (_QUEUE_NAME, _READER, _Argument("first_id", binary.I64), _END_ID, _Argument("max_bytes", binary.I32, 0)),
        commands.ReadRange,
    ),
    b"release_range": ((_QUEUE_NAME, _READER, _END_ID), commands.ReleaseRange),
    b"close_range": ((_QUEUE_NAME, _READER), commands.CloseRange),
    b"current_status": ((), commands.Status),
    b"set_status": ((_Argument("status", binary.I32),), _set_status),
    b"get_version": ((), commands.Version),
}

_ARGUMENT_READERS: Final[dict[int, Callable[[ThriftCodec, binary.ThriftReader], Any]]] = {
    binary.STRING: lambda codec, reader: reader.binary(),
    binary.I32: lambda codec, reader: reader.i32(),
    binary.I64: lambda codec, reader: reader.i64(),
    binary.LIST: ThriftCodec._items,
    binary.SET: ThriftCodec._ids,
}
"""The reader of each argument type. All lists are of items, and all sets are of ids."""

"""Thrift's binary protocol with framing, for servers and clients.

A `ThriftReader` reads one complete frame. The functions below it encode the same values. Numbers are big-endian and
signed. Each length or count in a frame is compared with the rest of the frame before it is used. So reading takes time
and memory in proportion to the received bytes only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

# Types of values, as the byte on the wire.
STOP: Final = 0
BOOL: Final = 2
BYTE: Final = 3
DOUBLE: Final = 4
I16: Final = 6
I32: Final = 8
I64: Final = 10
STRING: Final = 11
STRUCT: Final = 12
MAP: Final = 13
SET: Final = 14
LIST: Final = 15
UUID: Final = 16

# Types of messages.
CALL: Final = 1
REPLY: Final = 2
EXCEPTION: Final = 3
ONEWAY: Final = 4

# Types of a TApplicationException.
UNKNOWN_METHOD: Final = 1
INVALID_MESSAGE_TYPE: Final = 2
INTERNAL_ERROR: Final = 6
PROTOCOL_ERROR: Final = 7

MAX_DEPTH: Final = 64
"""Limit of nested structs and containers in skipped values."""

MAX_SKIPPED_VALUES: Final = 10_000
"""Limit of skipped values in one frame. The values of a container with elements of fixed size count as one."""

MAX_NAME_BYTES: Final = 100

MAX_HEADER_BYTES: Final = 4 + 4 + MAX_NAME_BYTES + 4
"""Length of the longest message header, in the strict form."""

LENGTH_BYTES: Final = 4
"""Bytes of a frame's length, which does not include them."""

_STRICT_VERSION: Final = 0x8001_0000
_VERSION_MASK: Final = 0xFFFF_0000

_SIZES: Final = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8, UUID: 16}
"""Sizes of the types with a fixed size, in bytes."""

_MIN_SIZES: Final = {**_SIZES, STRING: 4, STRUCT: 1, MAP: 6, SET: 5, LIST: 5}
"""The smallest size of a value of each type, in bytes."""

_BYTE: Final = struct.Struct(">b")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_U32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")
_FIELD: Final = struct.Struct(">bh")
_LIST: Final = struct.Struct(">bi")
_MAP: Final = struct.Struct(">bbi")
_TYPE_AND_SEQID: Final = struct.Struct(">bi")
_I32_FIELD: Final = struct.Struct(">bhi")
_I64_FIELD: Final = struct.Struct(">bhq")


class BadThrift(Exception):
    """Bytes that are not valid thrift, with the reason."""


class TruncatedThrift(BadThrift):
    """Bytes that end before the value does."""


class MessageHeader(NamedTuple):
    """The header of a message. `is_strict` is True for the form that begins with a version."""

    name: bytes
    type: int
    seqid: int
    is_strict: bool


# Bytes to values.


class ThriftReader:
    """A reader of the values in one frame. Invalid bytes raise `BadThrift`.

    `position` is the offset in `data` of the next byte. Readers of whole layouts of fields may move it.
    """

    __slots__ = ("_skipped", "data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self._skipped = 0

    @property
    def remaining_bytes(self) -> int:
        """Number of bytes that are not read yet."""
        return len(self.data) - self.position

    def _advance(self, size: int) -> int:
        """Skip `size` bytes, and return the position where they begin."""
        start = self.position
        end = start + size
        if end > len(self.data):
            raise TruncatedThrift("the message ends too soon")
        self.position = end
        return start

    def byte(self) -> int:
        """Read a signed byte."""
        value: int = _BYTE.unpack_from(self.data, self._advance(1))[0]
        return value

    def i16(self) -> int:
        """Read a signed 16-bit number."""
        value: int = _I16.unpack_from(self.data, self._advance(2))[0]
        return value

    def i32(self) -> int:
        """Read a signed 32-bit number or an enum."""
        value: int = _I32.unpack_from(self.data, self._advance(4))[0]
        return value

    def i64(self) -> int:
        """Read a signed 64-bit number."""
        value: int = _I64.unpack_from(self.data, self._advance(8))[0]
        return value

    def binary(self) -> bytes:
        """Read the bytes of a binary or a string, which are not decoded."""
        size = self._length()
        start = self._advance(size)
        return self.data[start : start + size]

    def _length(self) -> int:
        size = self.i32()
        if size < 0:
            raise BadThrift("a length is negative")
        return size

    def header(self) -> MessageHeader:
        """Read a message header, strict or not. A name over `MAX_NAME_BYTES` is refused before it is complete."""
        first = self.i32()
        if first >= 0:
            name = self._name(first)
            return MessageHeader(name, self.byte(), self.i32(), is_strict=False)
        if first & _VERSION_MASK != _STRICT_VERSION:
            raise BadThrift("the message is of an unknown version of the binary protocol")
        return MessageHeader(self._name(self._length()), first & 0xFF, self.i32(), is_strict=True)

    def _name(self, size: int) -> bytes:
        if size > MAX_NAME_BYTES:
            raise BadThrift(f"the method name is too long; limit={MAX_NAME_BYTES}")
        start = self._advance(size)
        return self.data[start : start + size]

    def field(self) -> tuple[int, int]:
        """Read the type and id of a struct's next field, or (`STOP`, 0) after the last one."""
        type_ = self.byte()
        return (type_, 0) if type_ == STOP else (type_, self.i16())

    def list_header(self) -> tuple[int, int]:
        """Read the header of a list or set, and return the type and number of its elements, which fit in the rest of
        the frame.

        Without elements, the type has no meaning.
        """
        type_, count = _LIST.unpack_from(self.data, self._advance(5))
        if count:
            self._check_count(count, self._least_size(type_))
        return type_, count

    def map_header(self) -> tuple[int, int, int]:
        """Read the header of a map: key type, value type, and number of pairs, which fit in the rest of the frame.

        Without pairs, the types have no meaning.
        """
        key_type, value_type, count = _MAP.unpack_from(self.data, self._advance(6))
        if count:
            self._check_count(count, self._least_size(key_type) + self._least_size(value_type))
        return key_type, value_type, count

    @staticmethod
    def _least_size(type_: int) -> int:
        size = _MIN_SIZES.get(type_)
        if size is None:
            raise BadThrift(f"{type_} is not the number of a type")
        return size

    def _check_count(self, count: int, least_size: int) -> None:
        if count < 0:
            raise BadThrift("a number of elements is negative")
        if count > self.remaining_bytes // least_size:
            raise TruncatedThrift("the message ends before all its elements")

    def binaries(self, count: int) -> list[bytes]:
        """Read `count` elements of a list or set of binaries."""
        return [self.binary() for _ in range(count)]

    def i64s(self, count: int) -> Sequence[int]:
        """Read `count` elements of a list or set of 64-bit numbers."""
        return struct.unpack_from(f">{count}q", self.data, self._advance(8 * count))

    def skip(self, type_: int, depth: int = MAX_DEPTH) -> None:
        """Skip a value of the type. `depth` is the number of levels that may be nested."""
        self._skipped += 1
        if self._skipped > MAX_SKIPPED_VALUES:
            raise BadThrift(f"too many unknown values; limit={MAX_SKIPPED_VALUES}")
        size = _SIZES.get(type_)
        if size is not None:
            self._advance(size)
        elif type_ == STRING:
            self._advance(self._length())
        elif depth == 0:
            raise BadThrift(f"structs or containers are nested too deeply; limit={MAX_DEPTH}")
        elif type_ == STRUCT:
            while (field_type := self.field()[0]) != STOP:
                self.skip(field_type, depth - 1)
        elif type_ in (LIST, SET):
            element_type, count = self.list_header()
            self._skip_many(count, (element_type,), depth - 1)
        elif type_ == MAP:
            key_type, value_type, count = self.map_header()
            self._skip_many(count, (key_type, value_type), depth - 1)
        else:
            raise BadThrift(f"{type_} is not the number of a type")

    def _skip_many(self, count: int, types: tuple[int, ...], depth: int) -> None:
        if all(type_ in _SIZES for type_ in types):
            self._advance(count * sum(_SIZES[type_] for type_ in types))
            return
        for _ in range(count):
            for type_ in types:
                self.skip(type_, depth)


def read_application_exception(reader: ThriftReader) -> tuple[int, str]:
    """Read a TApplicationException, and return its type and message. The defaults are 0 and an empty string."""
    type_ = 0
    message = ""
    while (field := reader.field())[0] != STOP:
        if field == (STRING, 1):
            message = reader.binary().decode("utf-8", "replace")
        elif field == (I32, 2):
            type_ = reader.i32()
        else:
            reader.skip(field[0])
    return type_, message


# Values to bytes.

END: Final = bytes([STOP])
"""The end of a struct. By itself it is an empty struct."""


def frame(*parts: bytes) -> bytes:
    """Return a message, given in parts, with its length before it."""
    return b"".join((_I32.pack(sum(map(len, parts))), *parts))


def header(name: bytes, type_: int, seqid: int, is_strict: bool = True) -> bytes:
    """Encode the header of a message, which its struct follows."""
    if is_strict:
        return _U32.pack(_STRICT_VERSION | type_) + binary(name) + _I32.pack(seqid)
    return binary(name) + _TYPE_AND_SEQID.pack(type_, seqid)


def binary(data: bytes) -> bytes:
    """Encode a binary or a string without a field, as an element of a list."""
    return _I32.pack(len(data)) + data


def i64(value: int) -> bytes:
    """Encode a 64-bit number without a field, as an element of a set."""
    return _I64.pack(value)


def binary_field(id_: int, data: bytes) -> bytes:
    """Encode a field with a binary or a string."""
    return _I32_FIELD.pack(STRING, id_, len(data)) + data


def i32_field(id_: int, value: int) -> bytes:
    """Encode a field with a 32-bit number or an enum."""
    return _I32_FIELD.pack(I32, id_, value)


def i64_field(id_: int, value: int) -> bytes:
    """Encode a field with a 64-bit number."""
    return _I64_FIELD.pack(I64, id_, value)


def field_tag(type_: int, id_: int) -> bytes:
    """Encode the type and id of a field, which its value follows."""
    return _FIELD.pack(type_, id_)


def struct_field(id_: int) -> bytes:
    """Encode the beginning of a field with a struct, which its fields and `END` follow."""
    return _FIELD.pack(STRUCT, id_)


def list_field(id_: int, element_type: int, count: int) -> bytes:
    """Encode the beginning of a field with a list, which `count` elements follow."""
    return _FIELD.pack(LIST, id_) + _LIST.pack(element_type, count)


def set_field(id_: int, element_type: int, count: int) -> bytes:
    """Encode the beginning of a field with a set, which `count` elements follow."""
    return _FIELD.pack(SET, id_) + _LIST.pack(element_type, count)


def application_exception(type_: int, message: str) -> bytes:
    """Encode the TApplicationException of an `EXCEPTION` message."""
    return binary_field(1, message.encode("utf-8", "backslashreplace")) + i32_field(2, type_) + END

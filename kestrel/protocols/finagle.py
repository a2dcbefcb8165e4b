"""The headers that Finagle's clients add to thrift messages.

Such a client first calls a method that no service has. If the server answers it, the connection is upgraded. From then
on each frame of the client begins with a `RequestHeader`, and each of the server with a `ResponseHeader`. Both are
structs of Finagle's tracing.thrift. Only the client's name is used here.
"""

from __future__ import annotations

from typing import Final

from kestrel.protocols import thrift_binary as binary

UPGRADE_METHOD: Final = b"__can__finagle__trace__v3__"
"""The method that requests the upgrade."""

RESPONSE_HEADER: Final = binary.END
"""A header without spans and contexts."""

MAX_REQUEST_HEADER_BYTES: Final = 1024
"""Limit of bytes read of a frame that is too large, to find the message after the header."""

MAX_CLIENT_ID_BYTES: Final = 256
"""Limit of a client name. A longer name is ignored."""

_CLIENT_ID: Final = (binary.STRUCT, 6)
_NAME: Final = (binary.STRING, 1)


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

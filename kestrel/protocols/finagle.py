"""What Finagle's clients put around thrift's messages.

Such a client first calls a method that no service has. Where that is answered, the connection is upgraded: each frame
of the client's then begins with a `RequestHeader`, and each of the server's with a `ResponseHeader`, two structs of
Finagle's tracing.thrift. Of all that is in them the client's name is of use here.
"""

from __future__ import annotations

from typing import Final

from kestrel.protocols import thrift_binary as binary

UPGRADE_METHOD: Final = b"__can__finagle__trace__v3__"
"""The method that asks for it."""

RESPONSE_HEADER: Final = binary.END
"""No spans, no contexts."""

MAX_REQUEST_HEADER_BYTES: Final = 1024
"""How much of a frame that is too large is read to find the message behind the header."""

MAX_CLIENT_ID_BYTES: Final = 256
"""A longer name counts for nothing."""

_CLIENT_ID: Final = (binary.STRUCT, 6)
_NAME: Final = (binary.STRING, 1)


def read_request_header(reader: binary.ThriftReader) -> bytes | None:
    """Read a `RequestHeader`: the name that the client gives itself in it, or None. Raises `BadThrift`."""
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

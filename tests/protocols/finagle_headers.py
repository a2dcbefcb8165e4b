"""Finagle's headers, written and read with thriftpy2."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any, Final

import thriftpy2
from thriftpy2.protocol.binary import TBinaryProtocol

IDL: Final[Any] = thriftpy2.load(str(Path(__file__).with_name("tracing.thrift")), "tracing_loaded_thrift")


def request_header(name: str | None = None) -> bytes:
    """Return a request header with all fields that a client may send, and this client name."""
    header = IDL.RequestHeader(
        trace_id=1 << 62,
        span_id=-1,
        parent_span_id=7,
        sampled=True,
        client_id=None if name is None else IDL.ClientId(name),
        flags=1,
        contexts=[IDL.RequestContext(b"key", b"value"), IDL.RequestContext(b"", b"\x00\xff")],
        dest="/s/queues",
        delegations=[IDL.Delegation("/s", "/zk")],
        trace_id_high=9,
    )
    return written(header)


def written(header: Any) -> bytes:
    """Return the bytes of a struct."""
    buffer = BytesIO()
    header.write(TBinaryProtocol(buffer))
    return buffer.getvalue()


def without_header(message: bytes) -> bytes:
    """Return the bytes behind the header of a reply, which must be complete."""
    buffer = BytesIO(message)
    IDL.ResponseHeader().read(TBinaryProtocol(buffer))
    return buffer.read()

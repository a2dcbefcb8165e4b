"""A codec whose connection has ended holds no bytes and makes no command."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from kestrel.protocols import thrift_binary as binary
from kestrel.protocols.codec import Codec
from kestrel.protocols.memcache import MemcacheCodec
from kestrel.protocols.text import TextCodec
from kestrel.protocols.thrift import ThriftCodec

CALL = binary.header(b"get_version", binary.CALL, 7) + binary.END


@pytest.mark.parametrize(
    ("make", "request_"),
    [
        (MemcacheCodec, b"set work 0 0 5\r\nhello\r\n"),
        (TextCodec, b"put work:\none\ntwo\n\n"),
        (TextCodec, b"version:\nignored\n\n"),
        (partial(ThriftCodec, 1000, 200, 8), binary.frame(CALL)),
        (partial(ThriftCodec, 10, 200, 8), binary.frame(CALL)),
    ],
    ids=["memcache", "text", "text, ignored data", "thrift", "thrift, too large frame"],
)
def test_closed_codec_holds_nothing_and_makes_no_command(make: Callable[[], Codec], request_: bytes) -> None:
    for size in range(len(request_) + 1):
        codec = make()
        codec.buffer.receive(request_[:size])
        if size < len(request_):
            codec.next_command()  # parses the beginning
        codec.end()
        assert len(codec) == 0
        codec.buffer.receive(request_[size:] + request_)
        assert len(codec) == 0
        assert codec.next_command() is None

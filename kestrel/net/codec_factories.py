"""The codec factories of the protocols, with the limits of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kestrel.config.model import Config
from kestrel.protocols.codec import Codec
from kestrel.protocols.memcache import MemcacheCodec
from kestrel.protocols.text import TextCodec
from kestrel.protocols.thrift import ThriftCodec


def _memcache(config: Config) -> Codec:
    return MemcacheCodec(config.max_line_size_bytes, config.max_request_item_size_bytes, config.echo_requested_key)


def _text(config: Config) -> Codec:
    return TextCodec(
        config.max_line_size_bytes,
        config.max_request_item_size_bytes,
        config.max_text_put_items,
        config.max_request_size_bytes,
    )


def _thrift(config: Config) -> Codec:
    return ThriftCodec(config.max_request_size_bytes, config.max_request_item_size_bytes, config.max_thrift_list_size)


CODEC_FACTORIES: Final[Mapping[str, Callable[[Config], Codec]]] = {
    "memcache": _memcache,
    "text": _text,
    "thrift": _thrift,
}
"""The factories by protocol, in the order in which ports are opened."""

"""What a session's codec can do beyond every codec: only a protocol that has a command is asked to answer it."""

from __future__ import annotations

from typing import cast

from kestrel.protocols.codec import GetManyCodec, LineCodec, RangeCodec
from kestrel.session.session import Session


def line_codec(session: Session) -> LineCodec:
    """For commands of memcache and text."""
    return cast(LineCodec, session.codec)


def get_many_codec(session: Session) -> GetManyCodec:
    """For commands that take many items."""
    return cast(GetManyCodec, session.codec)


def range_codec(session: Session) -> RangeCodec:
    """For commands about items by their ids."""
    return cast(RangeCodec, session.codec)

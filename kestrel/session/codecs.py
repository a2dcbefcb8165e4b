"""Casts of a session's codec for the commands that only some protocols have."""

from __future__ import annotations

from typing import cast

from kestrel.protocols.codec import GetManyCodec, LineCodec, RangeCodec
from kestrel.session.session import Session


def line_codec(session: Session) -> LineCodec:
    """Return the session's codec for commands of the memcache and text protocols."""
    return cast(LineCodec, session.codec)


def get_many_codec(session: Session) -> GetManyCodec:
    """Return the session's codec for commands that take many items."""
    return cast(GetManyCodec, session.codec)


def range_codec(session: Session) -> RangeCodec:
    """Return the session's codec for commands that read items by their ids."""
    return cast(RangeCodec, session.codec)

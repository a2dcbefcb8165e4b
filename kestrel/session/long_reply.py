"""A reply of any length, made piece by piece as the client reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kestrel.session.session import Session

MAX_HELD_BYTES: Final = 32 * 1024
"""Bytes held in the outbox above which no further piece is made."""


class LongReply:
    """A long reply in progress. Its session runs no other command until the last piece is made.

    Pieces should be small: each connection may hold `MAX_HELD_BYTES` and one piece. An empty piece is a step without
    output.
    """

    def __init__(self, session: Session, pieces: Iterator[bytes]) -> None:
        self._session = session
        self._pieces = pieces
        self._is_slice_due = False
        self._is_over = False

    def start(self) -> None:
        """Make the first piece now, and the others in the background. The command ends after the last one."""
        self._session.wait_for_server(self._stop, self._continue_later)
        self._add_next_piece()

    def _add_next_piece(self) -> None:
        self._is_slice_due = False
        session = self._session
        if self._is_over or session.outbox.is_paused or session.outbox.held_bytes >= MAX_HELD_BYTES:
            return  # the outbox calls `_continue_later` when replies are sent
        piece = next(self._pieces, None)
        if piece is None:
            session.finish_command()
            return
        if piece:
            session.outbox.reply(piece)
        self._continue_later()

    def _continue_later(self) -> None:
        if not self._is_slice_due and not self._is_over:
            self._is_slice_due = True
            self._session.continue_in_background(self._add_next_piece)

    def _stop(self) -> None:
        self._is_over = True

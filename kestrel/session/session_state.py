"""The states of a session.

A session parses the received bytes into commands and runs them one after the other. It pauses while a command waits for
an item or for the storage. It ends when the client disconnects or half-closes, or when the server closes the
connection. Replies that are held then are still sent, unless the client is gone.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class SessionState:
    """A state of a session."""

    __slots__ = ("has_ended", "name", "receives", "runs_commands")

    def __init__(
        self, name: str, *, runs_commands: bool = False, receives: bool = False, has_ended: bool = False
    ) -> None:
        self.name = name
        self.runs_commands = runs_commands
        """Whether the next command runs."""
        self.receives = receives
        """Whether more bytes may arrive."""
        self.has_ended = has_ended
        """Whether received bytes are ignored."""

    def __repr__(self) -> str:
        return self.name


OPEN: Final = SessionState("OPEN", runs_commands=True, receives=True)
"""Commands run as they arrive."""
WAITING: Final = SessionState("WAITING", receives=True)
"""A command waits because the client asked for it. Received bytes are kept."""
LOADING: Final = SessionState("LOADING", receives=True)
"""A command waits for the storage. Received bytes are kept."""
DRAINING: Final = SessionState("DRAINING", runs_commands=True)
"""The client has sent its last byte. The received commands run, then the session closes."""
DRAINING_LOADING: Final = SessionState("DRAINING_LOADING")
"""DRAINING while a command waits for the storage."""
CLOSING: Final = SessionState("CLOSING", has_ended=True)
"""No more commands run. Held replies are sent."""
GONE: Final = SessionState("GONE", has_ended=True)
"""The client is disconnected."""


class SessionEvent(Enum):
    """An event that changes a session's state."""

    CLIENT_WAITS = "a command began to wait for an item"
    STORAGE_WAITS = "a command began to wait for the storage"
    ANSWERED = "the command that waited was answered"
    INPUT_ENDED = "the client sent its last byte"
    ALL_DONE = "everything that was received is carried out"
    CLOSE = "the server hangs up after the held replies"
    LOST = "the connection is gone"


TRANSITIONS: Final[dict[SessionState, dict[SessionEvent, SessionState]]] = {
    OPEN: {
        SessionEvent.CLIENT_WAITS: WAITING,
        SessionEvent.STORAGE_WAITS: LOADING,
        SessionEvent.INPUT_ENDED: DRAINING,
        SessionEvent.ALL_DONE: OPEN,
        SessionEvent.CLOSE: CLOSING,
    },
    WAITING: {
        SessionEvent.ANSWERED: OPEN,
        # A half-close while waiting counts as a disconnect: the item must not go to a client that left.
        SessionEvent.INPUT_ENDED: CLOSING,
        SessionEvent.CLOSE: CLOSING,
    },
    LOADING: {
        SessionEvent.ANSWERED: OPEN,
        SessionEvent.INPUT_ENDED: DRAINING_LOADING,
        SessionEvent.CLOSE: CLOSING,
    },
    DRAINING: {
        SessionEvent.CLIENT_WAITS: CLOSING,
        SessionEvent.STORAGE_WAITS: DRAINING_LOADING,
        SessionEvent.INPUT_ENDED: DRAINING,
        SessionEvent.ALL_DONE: CLOSING,
        SessionEvent.CLOSE: CLOSING,
    },
    DRAINING_LOADING: {
        SessionEvent.ANSWERED: DRAINING,
        SessionEvent.INPUT_ENDED: DRAINING_LOADING,
        SessionEvent.CLOSE: CLOSING,
    },
    CLOSING: {
        SessionEvent.ANSWERED: CLOSING,
        SessionEvent.INPUT_ENDED: CLOSING,
        SessionEvent.ALL_DONE: CLOSING,
        SessionEvent.CLOSE: CLOSING,
    },
    GONE: dict.fromkeys(SessionEvent, GONE),
}
"""The state after each event that is allowed in a state. LOST is allowed in all of them."""


def next_state(state: SessionState, event: SessionEvent) -> SessionState:
    """Return the state after `event`. Raises KeyError if the event is not allowed in `state`."""
    if event is SessionEvent.LOST:
        return GONE
    return TRANSITIONS[state][event]

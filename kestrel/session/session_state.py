"""The states of a session.

A session makes commands of what it has received and carries them out one after the other. It stands still while
a command waits for an item or for the storage. It ends when the client hangs up, half hangs up, or is hung up
on; replies that are held then still leave, unless the client is gone.

    OPEN      carries out what arrives
    WAITING   a command waits, because the client asked for it; what arrives is kept
    LOADING   a command waits for the storage; what arrives is kept
    DRAINING  the client has sent its last byte: what it sent is carried out, then the session closes
    DRAINING_LOADING  the same, while a command waits for the storage
    CLOSING   nothing more is carried out; held replies leave
    GONE      there is no client
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class SessionState(Enum):
    """Where a session stands."""

    OPEN = "open"
    WAITING = "waiting"
    LOADING = "loading"
    DRAINING = "draining"
    DRAINING_LOADING = "draining, loading"
    CLOSING = "closing"
    GONE = "gone"


class SessionEvent(Enum):
    """What happens to it."""

    CLIENT_WAITS = "a command began to wait for an item"
    STORAGE_WAITS = "a command began to wait for the storage"
    ANSWERED = "the command that waited was answered"
    INPUT_ENDED = "the client sent its last byte"
    ALL_DONE = "everything that was received is carried out"
    CLOSE = "the server hangs up after the held replies"
    LOST = "the connection is gone"


TRANSITIONS: Final[dict[SessionState, dict[SessionEvent, SessionState]]] = {
    SessionState.OPEN: {
        SessionEvent.CLIENT_WAITS: SessionState.WAITING,
        SessionEvent.STORAGE_WAITS: SessionState.LOADING,
        SessionEvent.INPUT_ENDED: SessionState.DRAINING,
        SessionEvent.ALL_DONE: SessionState.OPEN,
        SessionEvent.CLOSE: SessionState.CLOSING,
    },
    SessionState.WAITING: {
        SessionEvent.ANSWERED: SessionState.OPEN,
        # Half-closing while waiting is hanging up: nobody would read the item.
        SessionEvent.INPUT_ENDED: SessionState.CLOSING,
        SessionEvent.CLOSE: SessionState.CLOSING,
    },
    SessionState.LOADING: {
        SessionEvent.ANSWERED: SessionState.OPEN,
        SessionEvent.INPUT_ENDED: SessionState.DRAINING_LOADING,
        SessionEvent.CLOSE: SessionState.CLOSING,
    },
    SessionState.DRAINING: {
        SessionEvent.CLIENT_WAITS: SessionState.CLOSING,
        SessionEvent.STORAGE_WAITS: SessionState.DRAINING_LOADING,
        SessionEvent.INPUT_ENDED: SessionState.DRAINING,
        SessionEvent.ALL_DONE: SessionState.CLOSING,
        SessionEvent.CLOSE: SessionState.CLOSING,
    },
    SessionState.DRAINING_LOADING: {
        SessionEvent.ANSWERED: SessionState.DRAINING,
        SessionEvent.INPUT_ENDED: SessionState.DRAINING_LOADING,
        SessionEvent.CLOSE: SessionState.CLOSING,
    },
    SessionState.CLOSING: {
        SessionEvent.ANSWERED: SessionState.CLOSING,
        SessionEvent.INPUT_ENDED: SessionState.CLOSING,
        SessionEvent.ALL_DONE: SessionState.CLOSING,
        SessionEvent.CLOSE: SessionState.CLOSING,
    },
    SessionState.GONE: dict.fromkeys(SessionEvent, SessionState.GONE),
}
"""What may happen in a state, and the state after it. LOST may happen in all of them."""

RUNNING_STATES: Final = frozenset({SessionState.OPEN, SessionState.DRAINING})
"""The states in which the next command is carried out."""

ENDED_STATES: Final = frozenset({SessionState.CLOSING, SessionState.GONE})
"""The states in which nothing that comes counts."""

RECEIVING_STATES: Final = frozenset({SessionState.OPEN, SessionState.WAITING, SessionState.LOADING})
"""The states in which more bytes may come."""


def next_state(state: SessionState, event: SessionEvent) -> SessionState:
    """The state after that event; a KeyError is a fault of ours."""
    if event is SessionEvent.LOST:
        return SessionState.GONE
    return TRANSITIONS[state][event]

"""The states of a session.

A session parses the received bytes into commands and runs them one after the other. It pauses while a command waits for
an item or for the storage. It ends when the client disconnects or half-closes, or when the server closes the
connection. Replies that are held then are still sent, unless the client is gone.

    OPEN      runs the commands that arrive
    WAITING   a command waits because the client asked for it; received bytes are kept
    LOADING   a command waits for the storage; received bytes are kept
    DRAINING  the client has sent its last byte: the received commands run, then the session closes
    DRAINING_LOADING  DRAINING while a command waits for the storage
    CLOSING   no more commands run; held replies are sent
    GONE      the client is disconnected
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class SessionState(Enum):
    """The state of a session."""

    OPEN = "open"
    WAITING = "waiting"
    LOADING = "loading"
    DRAINING = "draining"
    DRAINING_LOADING = "draining, loading"
    CLOSING = "closing"
    GONE = "gone"


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
    SessionState.OPEN: {
        SessionEvent.CLIENT_WAITS: SessionState.WAITING,
        SessionEvent.STORAGE_WAITS: SessionState.LOADING,
        SessionEvent.INPUT_ENDED: SessionState.DRAINING,
        SessionEvent.ALL_DONE: SessionState.OPEN,
        SessionEvent.CLOSE: SessionState.CLOSING,
    },
    SessionState.WAITING: {
        SessionEvent.ANSWERED: SessionState.OPEN,
        # A half-close while waiting counts as a disconnect: the item must not go to a client that left.
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
"""The state after each event that is allowed in a state. LOST is allowed in all of them."""

RUNNING_STATES: Final = frozenset({SessionState.OPEN, SessionState.DRAINING})
"""The states in which the next command runs."""

ENDED_STATES: Final = frozenset({SessionState.CLOSING, SessionState.GONE})
"""The states in which received bytes are ignored."""

RECEIVING_STATES: Final = frozenset({SessionState.OPEN, SessionState.WAITING, SessionState.LOADING})
"""The states in which more bytes may arrive."""


def next_state(state: SessionState, event: SessionEvent) -> SessionState:
    """Return the state after `event`. Raises KeyError if the event is not allowed in `state`."""
    if event is SessionEvent.LOST:
        return SessionState.GONE
    return TRANSITIONS[state][event]

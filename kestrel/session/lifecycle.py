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


class State(Enum):
    """Where a session stands."""

    OPEN = "open"
    WAITING = "waiting"
    LOADING = "loading"
    DRAINING = "draining"
    DRAINING_LOADING = "draining, loading"
    CLOSING = "closing"
    GONE = "gone"


class Event(Enum):
    """What happens to it."""

    CLIENT_WAITS = "a command began to wait for an item"
    STORAGE_WAITS = "a command began to wait for the storage"
    ANSWERED = "the command that waited was answered"
    INPUT_ENDED = "the client sent its last byte"
    ALL_DONE = "everything that was received is carried out"
    CLOSE = "the server hangs up after the held replies"
    LOST = "the connection is gone"


TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    State.OPEN: {
        Event.CLIENT_WAITS: State.WAITING,
        Event.STORAGE_WAITS: State.LOADING,
        Event.INPUT_ENDED: State.DRAINING,
        Event.ALL_DONE: State.OPEN,
        Event.CLOSE: State.CLOSING,
    },
    State.WAITING: {
        Event.ANSWERED: State.OPEN,
        # Half-closing while waiting is hanging up: nobody would read the item.
        Event.INPUT_ENDED: State.CLOSING,
        Event.CLOSE: State.CLOSING,
    },
    State.LOADING: {
        Event.ANSWERED: State.OPEN,
        Event.INPUT_ENDED: State.DRAINING_LOADING,
        Event.CLOSE: State.CLOSING,
    },
    State.DRAINING: {
        Event.CLIENT_WAITS: State.CLOSING,
        Event.STORAGE_WAITS: State.DRAINING_LOADING,
        Event.INPUT_ENDED: State.DRAINING,
        Event.ALL_DONE: State.CLOSING,
        Event.CLOSE: State.CLOSING,
    },
    State.DRAINING_LOADING: {
        Event.ANSWERED: State.DRAINING,
        Event.INPUT_ENDED: State.DRAINING_LOADING,
        Event.CLOSE: State.CLOSING,
    },
    State.CLOSING: {
        Event.ANSWERED: State.CLOSING,
        Event.INPUT_ENDED: State.CLOSING,
        Event.ALL_DONE: State.CLOSING,
        Event.CLOSE: State.CLOSING,
    },
    State.GONE: dict.fromkeys(Event, State.GONE),
}
"""What may happen in a state, and the state after it. LOST may happen in all of them."""

RUNNING: Final = frozenset({State.OPEN, State.DRAINING})
"""The states in which the next command is carried out."""

ENDED: Final = frozenset({State.CLOSING, State.GONE})
"""The states in which nothing that comes counts."""

HEARING: Final = frozenset({State.OPEN, State.WAITING, State.LOADING})
"""The states in which more bytes may come."""


def after(state: State, event: Event) -> State:
    """The state after that event; a KeyError is a fault of ours."""
    if event is Event.LOST:
        return State.GONE
    return TRANSITIONS[state][event]

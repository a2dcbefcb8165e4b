"""Which servers are asked, in which order, and when a request is repeated: the same for all clients, without I/O.

A `Plan` is a generator. It yields whom to ask, is sent the answer, or is thrown the `ClientFailure`, and returns what
the whole request comes to. `follow` carries one out by asking and waiting, `follow_async` by awaiting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Hashable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias, TypeVar

from kestrel.client.choice import RandomChoice, StayingChoice
from kestrel.client.errors import AllInUse, CannotConnect, ClientFailure, ConnectionFailed, NoServer, ServerError

A = TypeVar("A")
Q = TypeVar("Q")
S = TypeVar("S", bound=Hashable)
T = TypeVar("T")

Plan: TypeAlias = Generator[Q, A, T]
"""Yields questions `Q`, is sent answers `A`, returns a `T`."""

WAIT_PER_SERVER_MS: Final = 1000
"""How long to wait at one of several servers before the next one is asked."""


def somewhere(choice: RandomChoice[S], *, repeats: bool = False) -> Plan[S, T, T]:
    """Ask one server, and others as long as it is certain that the last one has not done it.

    With `repeats` also where nobody knows. When no server would or could, the failure is that of the last one, and a
    `NoServer` where there is none. The servers may change meanwhile.
    """
    asked: set[S] = set()
    failure: ClientFailure | None = None
    while (server := choice.next(asked)) is not None:
        asked.add(server)
        try:
            value = yield server
        except (ServerError, ConnectionFailed) as error:
            _tell(choice, server, error)
            if not (repeats or isinstance(error, ServerError | CannotConnect)):
                raise
            failure = error
        else:
            choice.answered(server)
            return value
    raise failure or NoServer(choice.no_server_reason)


def search(choice: StayingChoice[S], timeout_ms: int, *, is_alone: bool) -> Plan[tuple[S, int], T | None, T | None]:
    """Ask all servers for an item, until one has something or the time is up; at each step a server, and how long it
    is to wait, in milliseconds. Unless the server `is_alone`, now and later, all are first asked without waiting, and
    then in turn, so that one that has come meanwhile is asked soon. Where there is none at all it is a `NoServer`.

    The time is what the servers were asked to wait: one that says at once that there is nothing, because the queue is
    an alias or has just been deleted, is not asked again all the time.
    """
    left_ms = timeout_ms
    wait_ms = left_ms if is_alone else 0
    while True:
        asked: set[S] = set()
        failure: ClientFailure | None = None
        has_answered = False
        while (server := choice.next(asked)) is not None:
            asked.add(server)
            wait_ms = min(wait_ms, left_ms)
            try:
                found = yield server, wait_ms
            except (ServerError, ConnectionFailed) as error:
                _tell(choice, server, error)
                failure = error
                continue
            has_answered = True
            if found is not None:
                choice.answered(server)
                return found
            choice.was_empty(server)
            left_ms -= wait_ms
        if not has_answered:
            raise failure or NoServer(choice.no_server_reason)
        if left_ms <= 0:
            return None
        wait_ms = WAIT_PER_SERVER_MS


def _tell(choice: RandomChoice[S], server: S, error: ClientFailure) -> None:
    """The server is left alone for a while, unless it is our own limit that was reached."""
    if not isinstance(error, AllInUse):
        choice.failed(server)


@contextmanager
def naming_server(server: object) -> Iterator[None]:
    """What fails within this `with` says which server it was: the text begins with it, once."""
    try:
        yield
    except (ServerError, ConnectionFailed) as error:
        if not str(error).startswith(f"{server}: "):
            error.args = (f"{server}: {error}",)
        raise


def follow(plan: Plan[Q, A, T], ask: Callable[[Q], A]) -> T:
    """Carry the plan out; every question is put to `ask`, which returns the answer or raises a `ClientFailure`."""
    try:
        question = next(plan)
        while True:
            try:
                answer = ask(question)
            except ClientFailure as failure:
                question = plan.throw(failure)
            else:
                question = plan.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


async def follow_async(plan: Plan[Q, A, T], ask: Callable[[Q], Awaitable[A]]) -> T:
    """The same, where an answer has to be awaited."""
    try:
        question = next(plan)
        while True:
            try:
                answer = await ask(question)
            except ClientFailure as failure:
                question = plan.throw(failure)
            else:
                question = plan.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value

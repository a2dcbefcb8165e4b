"""The choice of servers and the repetition of requests, for all clients, without I/O.

A `Plan` is a generator. It yields the server to ask, is sent the answer or thrown the `ClientFailure`, and returns the
result of the whole request. `follow` runs a plan with blocking calls, `follow_async` with coroutines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Hashable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias, TypeVar

from kestrel.client.choice import RandomChoice, StayingChoice
from kestrel.client.errors import (
    AllInUse,
    CannotConnect,
    ClientFailure,
    ConnectionFailed,
    NoServer,
    OpenReadsError,
    ServerError,
)

A = TypeVar("A")
Q = TypeVar("Q")
S = TypeVar("S", bound=Hashable)
T = TypeVar("T")

Plan: TypeAlias = Generator[Q, A, T]
"""A generator that yields questions `Q`, is sent answers `A`, and returns a `T`."""

WAIT_PER_SERVER_MS: Final = 1000
"""How long to wait at one of several servers before the next one is asked."""


def somewhere(choice: RandomChoice[S], *, repeats: bool = False) -> Plan[S, T, T]:
    """Ask a server, and others while it is certain that none has carried out the request.

    With `repeats`, others are also asked if that is uncertain. If all servers refuse or fail, the error of the last one
    is raised, or `NoServer` if there is none. The servers may change meanwhile.
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
    """Ask all servers for an item until one has an item or the time is up. Yield a server and its wait in milliseconds.

    If `is_alone`, there is only one server and always will be: it is asked with the whole wait. Otherwise all servers
    are first asked without waiting, and then in turn for `WAIT_PER_SERVER_MS` each. Raises `NoServer` if there is none.

    Only the requested waits count against the timeout. So a server that reports an empty queue at once, because the
    queue is an alias or was just deleted, is not asked in a tight loop.
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


def end_read(*, is_of_connection: bool) -> Plan[bool, None, None]:
    """Confirm or abort an open read. Yield True to ask over the connection of the read, False to ask over another one.

    If the read `is_of_connection`, the failure of that connection is raised. Otherwise the request is repeated once.
    Then `OpenReadsError` may mean that the first attempt has ended the read: its failure is raised instead, unless that
    attempt was certainly not carried out.
    """
    try:
        yield True
    except ConnectionFailed as failure:
        if is_of_connection:
            raise
        try:
            yield False
        except OpenReadsError:
            if isinstance(failure, CannotConnect):
                raise
            raise failure from None


def _tell(choice: RandomChoice[S], server: S, error: ClientFailure) -> None:
    """Let a server back off after a failure, unless the failure was the client's own connection limit."""
    if not isinstance(error, AllInUse):
        choice.failed(server)


@contextmanager
def naming_server(server: object) -> Iterator[None]:
    """Prefix a `ServerError` or `ConnectionFailed` raised in a `with` block with the name of the server, once."""
    try:
        yield
    except (ServerError, ConnectionFailed) as error:
        if not str(error).startswith(f"{server}: "):
            error.args = (f"{server}: {error}",)
        raise


def follow(plan: Plan[Q, A, T], ask: Callable[[Q], A]) -> T:
    """Run a plan, and return its result. `ask` returns the answer to a question, or raises a `ClientFailure`."""
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
    """Run a plan, and return its result. `ask` is awaited for each answer, or raises a `ClientFailure`."""
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

"""The choice of the server for each request, as in Kestrel's clients, and the repetition of requests.

A put is sent to a random server. Gets stay with one server for a while, which avoids asking many empty ones, and move
on when it is empty. Puts and gets use separate choices: a server whose disk is full can still serve gets.

The rules are written once, as coroutines. `run_blocking` runs them for clients that block.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kestrel.client.errors import AllInUse, CannotConnect, ClientFailure, ConnectionFailed, NoServer, ServerError

INITIAL_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 60.0


class Backoff:
    """The backoff times of one server: doubled after each failure, up to `longest_s`, and shortened at random.

    The random part prevents all clients from returning to a restarted server at the same moment.
    """

    def __init__(self, random: Random, first_s: float = INITIAL_BACKOFF_S, longest_s: float = MAX_BACKOFF_S) -> None:
        self._random = random
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s
        self.ends_s = float("-inf")
        """Time at which the server may be tried again, on the clock of the `now_s` passed to `failed`."""

    def failed(self, now_s: float) -> float:
        """Note a failure. Return the backoff time in seconds, between half of the current maximum and all of it."""
        pause_s = self._next_s * self._random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self._longest_s)
        self.ends_s = now_s + pause_s
        return pause_s

    def answered(self) -> None:
        """Note an answer: the backoff ends, and the next one starts with `first_s` again."""
        self._next_s = self._first_s
        self.ends_s = float("-inf")


S = TypeVar("S", bound=Hashable)
T = TypeVar("T")

GETS_PER_SERVER: Final = 100

WAIT_PER_SERVER_MS: Final = 1000
"""How long to wait at one of several servers before the next one is asked."""

NO_SERVER: Final = "there is no server"


class NoServerReasons(NamedTuple):
    """Error messages for when there is no server."""

    reads: str = NO_SERVER
    writes: str = NO_SERVER
    all: str = NO_SERVER


NO_SERVER_REASONS: Final = NoServerReasons()


class RandomChoice(Generic[S]):
    """A random choice of a server for each request. A server that failed is not chosen for a while (`Backoff`).

    While all servers are backing off, the one whose backoff ends first is chosen. `seconds` is a monotonic clock.
    """

    no_server_reason = NO_SERVER
    """Error message for an empty list of servers."""

    def __init__(self, servers: Iterable[S], random: Random, seconds: Callable[[], float]) -> None:
        self._random = random
        self._seconds = seconds
        self._backoffs: dict[S, Backoff] = {}
        self.use(servers)

    def use(self, servers: Iterable[S]) -> None:
        """Choose among these servers from now on. Servers that remain keep their backoff."""
        known = self._backoffs
        self._backoffs = {server: known.get(server) or Backoff(self._random) for server in servers}

    def next(self, besides: Collection[S] = ()) -> S | None:
        """Return the server to ask now, other than those in `besides`, or None if there is none.

        A server that is backing off is returned only if all servers are.
        """
        now_s = self._seconds()
        ready = [server for server, backoff in self._backoffs.items() if backoff.ends_s <= now_s]
        if ready:
            left = [server for server in ready if server not in besides]
            return self._one_of(left) if left else None
        resting = [server for server in self._backoffs if server not in besides]
        return min(resting, key=lambda server: self._backoffs[server].ends_s, default=None)

    def _one_of(self, servers: Sequence[S]) -> S:
        return self._random.choice(servers)

    def failed(self, server: S) -> None:
        """Note that a server failed or refused: back off. Further failures during the backoff are ignored."""
        backoff, now_s = self._backoffs.get(server), self._seconds()
        if backoff is not None and backoff.ends_s <= now_s:
            backoff.failed(now_s)

    def answered(self, server: S) -> None:
        """Note that a server answered: reset its backoff."""
        backoff = self._backoffs.get(server)
        if backoff is not None:
            backoff.answered()


class StayingChoice(RandomChoice[S]):
    """A choice that stays with one server for `gets_per_server` requests, unless it is empty or fails."""

    def __init__(
        self, servers: Iterable[S], random: Random, seconds: Callable[[], float], gets_per_server: int = GETS_PER_SERVER
    ) -> None:
        super().__init__(servers, random, seconds)
        self._gets_per_server = gets_per_server
        self._current: S | None = None
        self._left = 0

    def _one_of(self, servers: Sequence[S]) -> S:
        current = self._current
        if current is None or current not in servers or self._left == 0:
            others = [server for server in servers if server != current]
            current = self._current = super()._one_of(others or servers)
            self._left = self._gets_per_server
        self._left -= 1
        return current

    def was_empty(self, server: S) -> None:
        """Note that a server answered without an item: choose another one next time."""
        self.answered(server)
        if server == self._current:
            self._left = 0


class ServerChoices(Generic[S]):
    """The servers of a client, and the choices among them for puts and gets. There are none at first."""

    def __init__(
        self,
        random: Random,
        seconds: Callable[[], float],
        gets_per_server: int = GETS_PER_SERVER,
        no_server_reason: NoServerReasons = NO_SERVER_REASONS,
    ) -> None:
        self.writes: RandomChoice[S] = RandomChoice((), random, seconds)
        self.writes.no_server_reason = no_server_reason.writes
        self.reads: StayingChoice[S] = StayingChoice((), random, seconds, gets_per_server)
        self.reads.no_server_reason = no_server_reason.reads
        self.servers: tuple[S, ...] = ()
        """All servers, those for gets first."""
        self._no_server_reason = no_server_reason.all

    def use(self, reads: Sequence[S], writes: Sequence[S]) -> None:
        """Use these servers for gets and puts from now on."""
        self.servers = tuple(dict.fromkeys([*reads, *writes]))
        self.reads.use(reads)
        self.writes.use(writes)

    @property
    def is_alone(self) -> bool:
        """Whether there is only one server, and always will be."""
        return len(self.servers) == 1

    def refresh(self) -> None:
        """Use the current servers, if they can change. Called after each request; neither waits nor fails."""

    def keep_servers(self) -> None:
        """Ignore later changes of the servers."""

    def all_servers(self) -> tuple[S, ...]:
        """Return all servers, for requests to every one of them. Raises `NoServer`."""
        if not self.servers:
            raise NoServer(self._no_server_reason)
        return self.servers

    async def somewhere(self, choice: RandomChoice[S], ask: Callable[[S], Awaitable[T]], *, repeats: bool = False) -> T:
        """Ask a server of the choice, and others while it is certain that none has carried out the request.

        With `repeats`, others are also asked if that is uncertain. If all servers refuse or fail, the error of the last
        one is raised, or `NoServer` if there is none.
        """
        asked: set[S] = set()
        failure: ClientFailure | None = None
        while (server := choice.next(asked)) is not None:
            asked.add(server)
            try:
                value = await ask(server)
            except (ServerError, ConnectionFailed) as error:
                _tell(choice, server, error)
                if not (repeats or isinstance(error, ServerError | CannotConnect)):
                    raise
                failure = error
            else:
                choice.answered(server)
                return value
            finally:
                self.refresh()
        raise failure or NoServer(choice.no_server_reason)

    async def search(self, ask: Callable[[S, int], Awaitable[T | None]], timeout_ms: int) -> T | None:
        """Ask all servers for an item until one has an item or the time is up. `ask` gets a server and its wait in ms.

        A server that is alone is asked with the whole wait. Otherwise all servers are first asked without waiting, and
        then in turn for `WAIT_PER_SERVER_MS` each. Raises `NoServer` if there is none.

        Only the requested waits count against the timeout. So a server that reports an empty queue at once, because the
        queue is an alias or was just deleted, is not asked in a tight loop.
        """
        choice = self.reads
        left_ms = timeout_ms
        wait_ms = left_ms if self.is_alone else 0
        while True:
            asked: set[S] = set()
            failure: ClientFailure | None = None
            has_answered = False
            while (server := choice.next(asked)) is not None:
                asked.add(server)
                wait_ms = min(wait_ms, left_ms)
                try:
                    found = await ask(server, wait_ms)
                except (ServerError, ConnectionFailed) as error:
                    _tell(choice, server, error)
                    failure = error
                    continue
                finally:
                    self.refresh()
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


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, because everything that it awaits blocks instead. Return its value."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine of a blocking client waited for something")

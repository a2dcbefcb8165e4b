"""Responses are sent in slices, at the speed of the client, and end if the client does not read."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import IncompleteRead

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import LogEvent

from kestrel.admin.request_response import AdminRequest, AdminResponse, HttpError
from kestrel.admin.time_slices import SLICE_S, STALLED_CLIENT_TIMEOUT_S
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.transport import READ_BYTES
from tests.admin.browsing import Admin, WorkingClock, reply_in, request

PIECE = b"x" * 1000
PIECES = 1000


class PiecewiseAnswer:
    """An admin site with one response of a thousand pieces. Making the piece `wrong_at` fails."""

    def __init__(self, admin: Admin, wrong_at: int = -1) -> None:
        self.pieces = 0
        """The number of pieces made so far."""
        self.is_done = False
        self._wrong_at = wrong_at
        admin.site.handle = lambda asked: AdminResponse(self._make(), done=self._done)

    def _make(self) -> Iterator[bytes]:
        for number in range(PIECES):
            if number == self._wrong_at:
                raise RuntimeError("a mistake")
            self.pieces += 1
            yield PIECE

    def _done(self) -> None:
        self.is_done = True


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def made(admin: Admin) -> PiecewiseAnswer:
    return PiecewiseAnswer(admin)


@pytest.fixture
def client(admin: Admin, made: PiecewiseAnswer) -> MemoryClient:
    """Return a client that has sent a request and does not read the response."""
    client = admin.connect()
    client.reads = False
    client.ask(request("GET", "/"))
    return client


def test_a_slow_reader_pauses_the_response(made: PiecewiseAnswer, client: MemoryClient) -> None:
    assert len(client.transport.unsent) < READ_BYTES + 4 * len(PIECE)
    assert made.pieces < 100
    client.reads = True
    assert reply_in(client.take()).body == PIECE * PIECES
    assert made.is_done


def test_a_response_waits_until_the_transport_accepts_data(admin: Admin, made: PiecewiseAnswer) -> None:
    """TLS reports only once that it is full, possibly before this response."""
    handle = admin.site.handle
    asking: Deferred[None] = Deferred()
    admin.site.handle = lambda asked: asking.addCallback(lambda _: handle(asked))
    client = admin.connect()
    client.ask(request("GET", "/"))
    (channel,) = admin.site.channels
    channel.pauseProducing()  # type: ignore[no-untyped-call]
    asking.callback(None)
    admin.server.settle()
    assert (made.pieces, client.received) == (0, b"")
    channel.resumeProducing()  # type: ignore[no-untyped-call]
    admin.server.settle()
    assert reply_in(client.take()).body == PIECE * PIECES


def test_a_disconnect_ends_the_response(admin: Admin, made: PiecewiseAnswer, client: MemoryClient) -> None:
    pieces = made.pieces
    client.disconnect()
    admin.server.advance(1)
    assert (made.pieces, made.is_done) == (pieces, True)


def test_a_client_that_reads_nothing_is_disconnected(
    admin: Admin, made: PiecewiseAnswer, client: MemoryClient
) -> None:
    admin.server.advance(STALLED_CLIENT_TIMEOUT_S - 1)
    assert not client.is_closed
    admin.server.advance(1)
    assert client.is_closed
    assert made.is_done


@pytest.mark.usefixtures("made")
def test_a_client_that_reads_slowly_stays_connected(admin: Admin) -> None:
    client = admin.connect()
    client.send(request("GET", "/"))
    while not client.received.endswith(b"\r\n0\r\n\r\n"):
        client.reads = True
        admin.server.tick()
        client.reads = False
        admin.server.advance(STALLED_CLIENT_TIMEOUT_S - 1)
    assert reply_in(bytes(client.received)).body == PIECE * PIECES


def test_the_done_callback_runs_after_the_response(admin: Admin) -> None:
    client = admin.connect()
    when_done: list[bytes] = []
    admin.site.handle = lambda asked: AdminResponse(
        (b"one", b"two"), done=lambda: when_done.append(bytes(client.received + client.transport.unsent))
    )
    whole = client.ask(request("GET", "/"))
    assert when_done == [whole]
    assert whole.endswith(b"0\r\n\r\n")


def late_answer() -> Deferred[AdminResponse]:
    """Return a pending response to a client that has disconnected."""
    admin = Admin()
    answering: Deferred[AdminResponse] = Deferred()
    admin.site.handle = lambda asked: answering
    client = admin.connect()
    client.ask(request("GET", "/"))
    client.disconnect()
    return answering


def test_the_done_callback_runs_after_an_early_disconnect() -> None:
    is_done: list[bool] = []
    late_answer().callback(AdminResponse((PIECE,), done=lambda: is_done.append(True)))
    assert is_done == [True]


def test_a_failure_after_a_disconnect_is_ignored() -> None:
    late_answer().errback(HttpError(403, "no"))


def test_an_exception_before_the_first_piece_gives_status_500(admin: Admin, failures: list[LogEvent]) -> None:
    made = PiecewiseAnswer(admin, wrong_at=0)
    reply = admin.get("/")
    assert (reply.status, reply.error) == (500, "the request failed; the server's log has the reason")
    assert made.is_done
    assert len(failures) == 1
    failures.clear()


def test_an_exception_after_some_pieces_cuts_the_response_off(admin: Admin, failures: list[LogEvent]) -> None:
    made = PiecewiseAnswer(admin, wrong_at=5)
    client = admin.connect()
    received = client.ask(request("GET", "/"))
    with pytest.raises(IncompleteRead):
        reply_in(received)
    assert client.is_closed
    assert made.is_done
    assert len(failures) == 1
    failures.clear()


def test_an_exception_in_a_handler_is_reported_without_its_message(admin: Admin, failures: list[LogEvent]) -> None:
    def handle(asked: AdminRequest) -> AdminResponse:
        raise RuntimeError("a mistake")

    admin.site.handle = handle
    assert (admin.get("/").status, b"mistake" in admin.get("/").body) == (500, False)
    assert len(failures) == 2
    failures.clear()


def test_other_work_runs_between_slices_of_a_response() -> None:
    server = MemoryServer()
    clock = WorkingClock(server)
    admin = Admin(server=server, clock=clock)
    piece_s = SLICE_S / 4

    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            clock.work(piece_s)
            yield b""
        yield b"done"

    admin.site.handle = lambda asked: AdminResponse(pieces())
    assert admin.get("/").body == b"done"
    assert clock.longest_s <= SLICE_S + piece_s
    assert clock.turns >= 20


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_other_work_runs_between_pipelined_requests(method: str) -> None:
    server = MemoryServer()
    clock = WorkingClock(server)
    admin = Admin(server=server, clock=clock)
    work_s = SLICE_S / 4

    def handle(asked: AdminRequest) -> AdminResponse:
        clock.work(work_s)
        return AdminResponse((b"done",))

    admin.site.handle = handle
    assert admin.connect().ask(request(method, "/") * 100).count(b"HTTP/1.1 200 ") == 100
    assert clock.longest_s <= SLICE_S + work_s

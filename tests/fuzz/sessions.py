"""Sessions of an in-memory server with clients that send any bytes in any pieces, and may not read."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Final

from twisted.logger import LogLevel, capturedLogs

from kestrel.config.load import loads
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.transport import READ_BYTES
from tests.fuzz.choices import Choices

_QUEUES: Final = """
[[queues]]
name = "work"
maxItems = 3
maxItemSize = 10
discardOldWhenFull = true
errorQueue = "failed"
maxRedeliveries = 2

[[queues]]
name = "short"
maxAge = "1s"
expireToQueue = "work"

[[aliases]]
name = "all"
destinationQueues = ["work", "work+a", "other"]
"""

CONFIGS: Final = (
    # Without timeouts every request is answered; the third configuration has both timeouts.
    loads('maxOpenTransactions = 100\nrequestTimeout = "none"'),
    loads(f"maxOpenTransactions = 2\nrequestTimeout = \"none\"\nmaxPipelineBytes = \"16KiB\"\n{_QUEUES}"),
    loads(
        "maxOpenTransactions = 1\nmaxLineSize = 40\nmaxRequestItemSize = 30\nmaxRequestSize = 200\n"
        f"maxTextPutItems = 2\nmaxThriftListSize = 2\nclientTimeout = 5\nrequestTimeout = 20\n"
        f"maxPipelineBytes = 300\n{_QUEUES}"
    ),
)

MAX_STEPS: Final = 31

MAX_UNSENT_BYTES: Final = 3 * READ_BYTES
"""Limit of the unsent bytes for a client that does not read, in addition to `maxPipelineBytes`. The transport accepts
some bytes before it pauses the session, and one more reply."""

SEND, ADVANCE_TIME, SWITCH_CLIENT, TOGGLE_READING, HALF_CLOSE, DISCONNECT = range(6)
"""Kinds of steps. They send bytes, advance the time, switch to the other client, stop or resume reading, half-close, or
disconnect. The bytes that are left after all steps are sent at the end."""


def choose(choices: Choices) -> tuple[int, list[tuple[int, int]]]:
    """Return the index of a configuration, and the steps with their sizes."""
    config = choices.number(len(CONFIGS))
    return config, [(choices.number(6), choices.number(256)) for _ in range(choices.number(MAX_STEPS + 1))]


def check_session(protocol: str, data: bytes, check_replies: Callable[[bytes, bytes, bool], None]) -> None:
    """Run a session. Check that nothing is logged as an error, and that the server disconnects half-closed clients.

    Another client must still be served, and the server must stop. `check_replies` is called for each client, with the
    bytes that it sent and received, and whether it received all replies.
    """
    choices = Choices(data)
    config, steps = choose(choices)
    is_collecting = gc.isenabled()
    gc.disable()  # so that gc.collect(0) finds unhandled errors of this input, which are then logged
    try:
        with capturedLogs() as events:
            _serve(protocol, MemoryServer(config=CONFIGS[config]), steps, choices.rest(), check_replies)
            gc.collect(0)
    finally:
        if is_collecting:
            gc.enable()
    errors = [event for event in events if event["log_level"] >= LogLevel.error]
    assert not errors, errors


class _Client:
    """A client with the bytes that it has sent."""

    def __init__(self, server: MemoryServer, protocol: str) -> None:
        self.end: MemoryClient = server.connect(protocol)
        self.sent = bytearray()
        self.has_ended = False

    def send(self, data: bytes) -> None:
        if data and not self.has_ended:
            self.sent += data
            self.end.send(data)

    def half_close(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self.end.half_close()


def _serve(
    protocol: str,
    server: MemoryServer,
    steps: Sequence[tuple[int, int]],
    stream: bytes,
    check_replies: Callable[[bytes, bytes, bool], None],
) -> None:
    clients = [_Client(server, protocol), _Client(server, protocol)]
    disconnected = set()
    max_unsent = server.session_settings.max_pipeline_bytes + MAX_UNSENT_BYTES
    for kind, size in steps:
        client = clients[0]
        if kind == SEND:
            client.send(stream[: size + 1])
            stream = stream[size + 1 :]
        elif kind == ADVANCE_TIME:
            server.advance(size / 10)
        elif kind == SWITCH_CLIENT:
            clients.reverse()
        elif kind == TOGGLE_READING:
            client.end.reads = not client.end.reads
        elif kind == HALF_CLOSE:
            client.half_close()
        elif kind == DISCONNECT and not client.end.is_closed:
            client.end.disconnect()
            disconnected.add(id(client))
        server.settle()
        assert len(client.end.transport.unsent) <= max_unsent
    clients[0].send(stream)
    server.settle()
    for client in clients:
        assert len(client.end.transport.unsent) <= max_unsent
        client.end.reads = True
        client.half_close()
    server.settle()
    for client in clients:
        assert client.end.is_closed, "the server did not disconnect a client that half-closed"
        check_replies(bytes(client.sent), bytes(client.end.received), id(client) not in disconnected)
    assert server.manager.counters.curr_connections == 0
    bystander = server.connect("memcache")
    assert bystander.ask(b"version\r\n") == b"VERSION 1.2.3\r\n"
    bystander.disconnect()
    stopped: list[object] = []
    server.stop().addCallback(stopped.append)
    server.settle()
    assert stopped, "the server did not stop"

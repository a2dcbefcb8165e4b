"""Whole sessions over a server in memory: clients that send anything, in any pieces, and read or do not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Final

from twisted.logger import LogLevel, capturedLogs

from kestrel.config.load import loads
from kestrel.testing.server import MemoryClient, MemoryServer
from kestrel.testing.transport import READ_BYTES
from tests.fuzz.fed import Fed

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
    # Without timeouts, so that all that was asked is answered; the third has both.
    loads('maxOpenTransactions = 100\nrequestTimeout = "none"'),
    loads(f"maxOpenTransactions = 2\nrequestTimeout = \"none\"\nmaxPipelineBytes = \"16KiB\"\n{_QUEUES}"),
    loads(
        "maxOpenTransactions = 1\nmaxLineSize = 40\nmaxRequestItemSize = 30\nmaxRequestSize = 200\n"
        f"maxTextPutItems = 2\nmaxThriftListSize = 2\nclientTimeout = 5\nrequestTimeout = 20\n"
        f"maxPipelineBytes = 300\n{_QUEUES}"
    ),
)

MOST_STEPS: Final = 31

MOST_UNSENT_BYTES: Final = 3 * READ_BYTES
"""What waits for a client that does not read, beyond `maxPipelineBytes` of replies that are let go at once: what its
transport takes before it pauses the session, and a reply."""

SEND, LATER, OTHER_CLIENT, READS, HALF_CLOSE, DISCONNECT = range(6)
"""What a step may be: bytes are sent, time goes by, the other client goes on, this one reads no more or again, it sends
no more, it is gone. What is left after all steps is sent."""


def choose(choices: Fed) -> tuple[int, list[tuple[int, int]]]:
    """Which configuration, and the steps with their sizes."""
    config = choices.number(len(CONFIGS))
    return config, [(choices.number(6), choices.number(256)) for _ in range(choices.number(MOST_STEPS + 1))]


def check_session(protocol: str, data: bytes, check_replies: Callable[[bytes, bytes, bool], None]) -> None:
    """Nothing is logged as an error, nobody else is harmed, and who half-closes is answered and hung up on.

    `check_replies` is given what a client sent and what it received, and whether it has heard all that there was.
    """
    choices = Fed(data)
    config, steps = choose(choices)
    is_collecting = gc.isenabled()
    gc.disable()  # what is left of this input is young then, and found quickly: an error that nobody handled is logged
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
    """A client, and what went over its connection."""

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
    most_unsent = server.session_settings.max_pipeline_bytes + MOST_UNSENT_BYTES
    for kind, size in steps:
        client = clients[0]
        if kind == SEND:
            client.send(stream[: size + 1])
            stream = stream[size + 1 :]
        elif kind == LATER:
            server.advance(size / 10)
        elif kind == OTHER_CLIENT:
            clients.reverse()
        elif kind == READS:
            client.end.reads = not client.end.reads
        elif kind == HALF_CLOSE:
            client.half_close()
        elif kind == DISCONNECT and not client.end.is_closed:
            client.end.disconnect()
            disconnected.add(id(client))
        server.settle()
        assert len(client.end.transport.unsent) <= most_unsent
    clients[0].send(stream)
    server.settle()
    for client in clients:
        assert len(client.end.transport.unsent) <= most_unsent
        client.end.reads = True
        client.half_close()
    server.settle()
    for client in clients:
        assert client.end.is_closed, "who has said all was not hung up on"
        check_replies(bytes(client.sent), bytes(client.end.received), id(client) not in disconnected)
    assert server.manager.counters.curr_connections == 0
    bystander = server.connect("memcache")
    assert bystander.ask(b"version\r\n") == b"VERSION 1.2.3\r\n"
    bystander.disconnect()
    stopped: list[object] = []
    server.stop().addCallback(stopped.append)
    server.settle()
    assert stopped, "the server did not stop"

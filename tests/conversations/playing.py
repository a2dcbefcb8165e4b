"""Plays a recorded conversation to a server over real sockets, or to one in memory if time has to pass.

A step's `wait` was how long the recorder listened. Here it is a generous limit for a reply, and silence is checked only
for a moment. At the end every open connection asks for the version, which shows extra or missing replies.

A step without a reply ends when the server has read the request, or has noticed the disconnect. Otherwise the next
step, on another connection, could come first.

A conversation with a `sleep` is played to a server in memory, whose time passes only where the recorder slept.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kestrel.testing.server import MemoryServer
from tests.conversations.replies import PARSERS, Reply, differences, replies_in
from tests.server.running import PATIENCE_S, eventually

Step = Mapping[str, Any]

SILENCE_S: Final = 0.05

TCP: Final = Path("/proc/net/tcp")
OPEN: Final = {"01": "established", "08": "the other side has hung up"}
"""The states of a connection that a process has not closed."""

FILE: Final = Path(__file__).with_name("conversations.json")


class Differs(AssertionError):
    """The server did not answer as expected."""


class Conversation:
    """A recorded conversation: its protocol, name and steps."""

    def __init__(self, recorded: Mapping[str, Any]) -> None:
        self.protocol: str = recorded["group"]
        self.name = f"{self.protocol}: {recorded['name']}"
        self.steps: list[Step] = recorded["steps"]
        self.is_timed = any("sleep" in step for step in self.steps)
        """Whether the replies depend on how long the recorder slept."""


def recorded_conversations() -> dict[str, Conversation]:
    """Return all conversations by name, in the order of their recording with one server."""
    conversations = [Conversation(recorded) for recorded in json.loads(FILE.read_text())]
    by_name = {conversation.name: conversation for conversation in conversations}
    assert len(by_name) == len(conversations), "names must tell conversations apart"
    return by_name


class Line:
    """A connection, and its bytes since the last step."""

    def __init__(self, port: int, protocol: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server_port = port
        self._port = int(self._socket.getsockname()[1])
        self._protocol = protocol
        self._parse = PARSERS[protocol]
        self._unread = b""
        self.is_closed = False

    def send(self, data: bytes) -> None:
        """Send a request. The server may have closed the connection."""
        with suppress(ConnectionError):
            self._socket.sendall(data)

    def listen(self, expected: list[Reply], closes: bool, recorded_s: float = 0.0) -> list[Reply]:
        """Return the next replies: the expected number, or all until the server closes the connection."""
        patience_s = PATIENCE_S + recorded_s
        wants_all = closes or self.is_closed
        if not expected and not wants_all:
            eventually(lambda: not self._unread_by_server(), "the server has read what was sent")
        deadline = time.monotonic() + (patience_s if expected or wants_all else SILENCE_S)
        while True:
            replies, rest = replies_in(self._unread, self._parse)
            if expected and not wants_all and len(replies) >= len(expected):
                break
            if self.is_closed or not self._receive(deadline):
                break
        if rest and (self.is_closed or not expected):
            replies.append(Reply(rest))
            rest = b""
        self._unread = rest
        return replies

    def _receive(self, deadline: float) -> bool:
        """Read what has arrived. Return False if the time is over."""
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self._socket.recv(1 << 20)
        except TimeoutError:
            return False
        except ConnectionError:
            data = b""
        self._unread += data
        self.is_closed = not data
        return True

    def check_it_is_in_step(self) -> None:
        """Ask for the version, and check that it is the only reply."""
        version = b"version\r\n" if self._protocol == "memcache" else b"version\n"
        expected = [Reply(b"VERSION" if self._protocol == "memcache" else b":version")]
        self.send(version)
        _check("afterwards", expected, self.listen(expected, closes=False))
        if self.is_closed:
            raise Differs("afterwards the server had hung up")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def hang_up(self) -> None:
        """Close the connection, and wait until the server has noticed."""
        self.close()
        eventually(lambda: self._unread_by_server() is None, "the server has noticed")

    def _unread_by_server(self) -> int | None:
        """Return the number of bytes that the server has not read yet, or None if it has closed its end."""
        for row in TCP.read_text().splitlines()[1:]:
            _, local, remote, state, queues, *_ = row.split()
            if local.endswith(f":{self._server_port:04X}") and remote.endswith(f":{self._port:04X}") and state in OPEN:
                return int(queues.partition(":")[2], 16)
        return None


class MemoryLine:
    """A connection to a server in memory, which has replied to everything once it has settled."""

    def __init__(self, server: MemoryServer, protocol: str) -> None:
        self._client = server.connect(protocol)
        self._parse = PARSERS[protocol]

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed the connection."""
        return self._client.is_closed

    def send(self, data: bytes) -> None:
        """Send a request."""
        self._client.send(data)

    def listen(self, expected: list[Reply], closes: bool, recorded_s: float = 0.0) -> list[Reply]:
        """Return all bytes that arrived."""
        replies, rest = replies_in(self._client.take(), self._parse)
        return [*replies, Reply(rest)] if rest else replies

    def hang_up(self) -> None:
        """Close the connection."""
        self._client.disconnect()

    def close(self) -> None:
        """Close the connection."""
        self._client.disconnect()


def play(conversation: Conversation, port: int, steps: Sequence[Step]) -> None:
    """Play the steps to the server at that port. Raises `Differs` at the first different reply."""
    assert not conversation.is_timed, "its steps could come too late"
    lines: dict[int, Line] = {}
    try:
        for step in steps:
            if step.get("disconnect"):
                lines.pop(step["conn"]).hang_up()
            else:
                if step["conn"] not in lines:
                    lines[step["conn"]] = Line(port, conversation.protocol)
                _play_step(conversation.protocol, step, lines[step["conn"]])
        for line in lines.values():
            if not line.is_closed:
                line.check_it_is_in_step()
    finally:
        for line in lines.values():
            line.close()


def play_in_memory(conversation: Conversation, server: MemoryServer, steps: Sequence[Step]) -> None:
    """Play the steps to a server in memory, whose time passes where the recorder slept."""
    lines: dict[int, MemoryLine] = {}
    for step in steps:
        if "sleep" in step:
            server.advance(step["sleep"])
        elif step.get("disconnect"):
            lines.pop(step["conn"]).hang_up()
        else:
            if step["conn"] not in lines:
                lines[step["conn"]] = MemoryLine(server, conversation.protocol)
            _play_step(conversation.protocol, step, lines[step["conn"]])
    for line in lines.values():
        line.close()


def _play_step(protocol: str, step: Step, line: Line | MemoryLine) -> None:
    sent = step["send"].encode("latin-1")
    if sent:
        line.send(sent)
    expected, rest = replies_in(step["recv"].encode("latin-1"), PARSERS[protocol])
    assert not rest, f"recorded within a reply: {rest!r}"
    where = f"after {sent[:100]!r}"
    _check(where, expected, line.listen(expected, step["closed"], step.get("wait", 0.0)))
    if line.is_closed is not step["closed"]:
        raise Differs(f"{where}: the server {'hung up' if line.is_closed else 'did not hang up'}")


def _check(where: str, expected: list[Reply], received: list[Reply]) -> None:
    difference = differences(expected, received)
    if difference is not None:
        raise Differs(f"{where}: {difference}")

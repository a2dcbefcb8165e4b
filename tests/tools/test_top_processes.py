"""top as a process: on a terminal, in a pipe, and with a server that stops."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.child import Child
from tests.server.running import ANY_PORT, PATIENCE_S, Processes, Server, own_port
from tests.tools.tool_processes import ENVIRONMENT, command, run

CONFIG = 'queuePath = "queues"\n'


class Terminal:
    """A terminal with a command. `seen` is its output since the last key."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._ours, self.theirs = pty.openpty()
        self.resize(24, 132)
        self.before = termios.tcgetattr(self.theirs)
        self.seen = b""
        self.process = Child[bytes](
            command("cli", "top", "--interval", "50ms", *arguments),
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**ENVIRONMENT, "TERM": "xterm", "LC_ALL": "C.UTF-8", **environment},
            start_new_session=True,
        )

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        self.seen = b""
        os.write(self._ours, text.encode())

    def until(self, pattern: str) -> None:
        """Read until the output since the last key matches."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern.encode(), self.seen, re.DOTALL):
            assert select.select([self._ours], [], [], deadline - time.monotonic())[0], self.seen
            self.seen += os.read(self._ours, 65536)

    def quit(self) -> int:
        self.type("q")
        self.until(re.escape("\x1b[?1049l"))
        return self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self.theirs)


@contextmanager
def on_terminal(*arguments: str, **environment: str) -> Iterator[Terminal]:
    terminal = Terminal(*arguments, **environment)
    try:
        yield terminal
    finally:
        terminal.close()


def serve(processes: Processes, admin: str = ANY_PORT) -> tuple[Server, str]:
    server = processes.serve(CONFIG, "--admin", admin)
    with server.connect() as client:
        client.put(b"work", b"a", b"b")
        client.put(b"mail\x9b2J", b"c")
    return server, f"http://127.0.0.1:{server.port_of('admin')}"


def test_top_sorts_filters_and_restores_the_terminal(processes: Processes) -> None:
    _, admin = serve(processes)
    with on_terminal("--admin", admin) as terminal:
        terminal.until(r"work.*mail\\x9b2J.*sorted by items")
        assert termios.tcgetattr(terminal.theirs) != terminal.before
        terminal.type("S")
        terminal.until("name")
        terminal.type("/work\n")
        terminal.until("1 queue matching")
        terminal.type("?")
        terminal.until("quit")
        terminal.type("?")
        terminal.until("work")
        assert terminal.quit() == 0
        assert termios.tcgetattr(terminal.theirs) == terminal.before


def test_resized_terminal_is_redrawn(processes: Processes) -> None:
    _, admin = serve(processes)
    with on_terminal("--admin", admin) as terminal:
        terminal.until("journal")
        terminal.type("p")
        terminal.until("PAUSED")
        terminal.seen = b""
        terminal.resize(10, 40)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.until("queue +items.*q quit")
        assert b"waiters" not in terminal.seen
        assert terminal.quit() == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_signal_ends_top_and_restores_the_terminal(processes: Processes, number: int, status: int) -> None:
    _, admin = serve(processes)
    with on_terminal("--admin", admin) as terminal:
        terminal.until("work")
        terminal.process.send_signal(number)
        terminal.until(re.escape("\x1b[?1049l"))
        assert terminal.process.wait(PATIENCE_S) == status
        assert termios.tcgetattr(terminal.theirs) == terminal.before


def test_top_continues_while_the_server_is_away(processes: Processes) -> None:
    with own_port() as port:
        endpoint = f"tcp:{port}:interface=127.0.0.1"
        server, admin = serve(processes, endpoint)
        with on_terminal("--admin", admin) as terminal:
            terminal.until("work")
            server.stop()
            terminal.until(r"no response since \d\d:\d\d:\d\d .*Connection refused; trying again")
            with processes.serve(CONFIG, "--admin", endpoint).connect() as client:
                client.put(b"zebra", b"striped")
                terminal.until("zebra")
            assert terminal.quit() == 0


def test_no_color_disables_colours(processes: Processes) -> None:
    with own_port() as port:
        server, admin = serve(processes, f"tcp:{port}:interface=127.0.0.1")
        with on_terminal("--admin", admin) as plain, on_terminal("--admin", admin, NO_COLOR="1") as colourless:
            for each in (plain, colourless):
                each.until("work")
            server.stop()
            for each in (plain, colourless):
                each.until("trying again")
            assert re.search(rb"\x1b\[[0-9;]*31m", plain.seen)
            assert not re.search(rb"\x1b\[[0-9;]*3[0-7]m", colourless.seen)


def test_pipe_and_dumb_terminal_get_a_plain_table(processes: Processes) -> None:
    _, admin = serve(processes)
    done = run("cli", "top", "--admin", admin, "--interval", "10ms", text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[3:]] == [["queue", "items"], ["work", "2"], ["mail\\x9b2J", "1"]]
    with on_terminal("--admin", admin, TERM="dumb") as terminal:
        terminal.until(r"work +2")
        assert terminal.process.wait(PATIENCE_S) == 0
        assert b"\x1b" not in terminal.seen


def test_unreachable_admin_port_is_reported_with_a_remedy() -> None:
    with own_port() as port:
        done = run("cli", "top", "--admin", f"127.0.0.1:{port}", text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"kestrel-cli: http://127.0.0.1:{port}: Connection refused; is the server running, and is httpPort set in its"
        " table [admin]? name another port with --admin\n"
    )

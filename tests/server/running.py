"""Real server processes for tests, and a plain client; nothing of either is left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.child import PATIENCE_S, Child
from tests.memcache_text import set_
from tests.server.fork_server import ForkedChild

ROOT: Final = Path(__file__).resolve().parents[2]
TWISTD: Final = Path(sys.executable).with_name("twistd")
ANY_PORT: Final = "tcp:0:interface=127.0.0.1"
PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "KESTREL_PURE")
"""What a server has of our environment."""

REQUESTS = {
    "memcache": (b"version\r\n", b"VERSION "),
    "text": (b"put work:\nhello\n\n", b"+1\n"),
    "thrift": (b"\0\0\0\x18\x80\x01\0\x01\0\0\0\x0bget_version\0\0\0\0\0", b"\0\0\0"),
}
"""A request of each protocol, and how its reply begins."""


def eventually(happened: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
    """Return as soon as that is true of another process, which cannot tell us when; fail when it never is."""
    deadline = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline, f"after {within_s} s still not: {what}"
        time.sleep(0.005)


@contextmanager
def own_port() -> Iterator[int]:
    """A port of 127.0.0.1 that is given to nobody else. Servers that are told to may listen there, one at a time."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: so both may have it
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


class Client:
    """A blocking connection to this machine. Whatever takes too long is a failure.

    `receive_buffer` is what the system holds for it, in bytes, in place of a buffer that grows.
    """

    def __init__(self, port: int, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        self._received = b""

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self.socket.sendall(data)

    def receive(self, size: int) -> bytes:
        """The next bytes: that many, or fewer when the server hangs up."""
        chunks, received = [self._received], len(self._received)
        while received < size:
            chunk = self.socket.recv(min(1 << 20, max(65536, size - received)))
            if not chunk:
                break
            chunks.append(chunk)
            received += len(chunk)
        together = b"".join(chunks)
        self._received = together[size:]
        return together[:size]

    def line(self) -> bytes:
        """The next line with its end, or what comes before the server hangs up."""
        while b"\n" not in self._received:
            chunk = self.socket.recv(65536)
            if not chunk:
                break
            self._received += chunk
        line, end, self._received = self._received.partition(b"\n")
        return line + end

    def to_the_end(self) -> bytes:
        """Everything until the server hangs up."""
        received = self._received
        self._received = b""
        chunks = [received]
        with suppress(ConnectionError):  # with unread bytes at its end, a close arrives as a reset
            while chunk := self.socket.recv(1 << 20):
                chunks.append(chunk)
        return b"".join(chunks)

    def expect(self, reply: bytes) -> None:
        """Exactly these bytes come next."""
        assert self.receive(len(reply)) == reply

    def ask(self, request: bytes, reply: bytes) -> None:
        """Send that; exactly this comes next."""
        self.send(request)
        self.expect(reply)

    def put(self, queue: bytes, *items: bytes) -> None:
        """Store the items, one request for each in one go."""
        self.send(b"".join(set_(queue, item) for item in items))
        self.expect(b"STORED\r\n" * len(items))

    def get(self, key: bytes) -> bytes | None:
        """The item that `get key` brings, or None; `key` may have options."""
        self.send(b"get %b\r\n" % key)
        first = self.line()
        if first == b"END\r\n":
            return None
        word, requested, flags, size = first.split()
        assert (word, requested, flags) == (b"VALUE", key, b"0"), first
        data = self.receive(int(size))
        self.expect(b"\r\nEND\r\n")
        return data

    def stats(self) -> dict[str, str]:
        """What `stats` says."""
        self.send(b"stats\r\n")
        stats = {}
        while (line := self.line()) != b"END\r\n":
            word, name, value = line.decode("latin-1").split(maxsplit=2)
            assert word == "STAT"
            stats[name] = value.strip()
        return stats

    def stop_sending(self) -> None:
        """Half-close: no more comes from this side, which still reads."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server:
    """One process of the server, begun in the foreground, with its output in files."""

    def __init__(self, process: Child[bytes], output: Path, log: Path) -> None:
        self.process = process
        self.output = output
        self.log = log

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid

    def stdout(self) -> str:
        """What it printed so far."""
        return self.output.read_text()

    def stderr(self) -> str:
        """What it complained of so far."""
        return self.output.with_suffix(".err").read_text()

    def logged(self) -> str:
        """Its log so far."""
        return self.log.read_text() if self.log.exists() else ""

    @property
    def port(self) -> int:
        """The port of the first memcache endpoint."""
        return port_in(self.logged())

    def port_of(self, protocol: str) -> int:
        """The port of the first endpoint of that protocol."""
        return port_in(self.logged(), protocol)

    def serves(self) -> Self:
        """Return when it has loaded its queues."""

        def is_serving() -> bool:
            assert self.process.poll() is None, f"it ended:\n{self.stdout()}{self.stderr()}{self.logged()}"
            return is_serving_in(self.logged())

        eventually(is_serving, "the server serves")
        return self

    def connect(self, receive_buffer: int | None = None, protocol: str = "memcache") -> Client:
        """A new connection to it."""
        return Client(self.port_of(protocol), receive_buffer)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def exit_status(self) -> int:
        """Wait for its end."""
        return self.process.wait()

    def stop(self) -> None:
        """An orderly stop."""
        self.signal(signal.SIGTERM)
        self.exit_status()

    def kill(self) -> None:
        """The end that no process can prepare for."""
        self.process.kill()
        self.process.wait()

    def memory_bytes(self) -> int:
        """Resident memory now."""
        return _memory(self.pid, "VmRSS")

    def peak_memory_bytes(self) -> int:
        """The most resident memory it ever had."""
        return _memory(self.pid, "VmHWM")

    def cpu_s(self) -> float:
        """How long it has worked, in seconds of a processor."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def open_files(self) -> int:
        """How many descriptors it holds."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def port_in(log: str, protocol: str = "memcache") -> int:
    """The port of the first endpoint of that protocol, as the log says it."""
    found = re.search(protocol + r": listening on (?:https?://)?127\.0\.0\.1:(\d+)", log)
    assert found, f"no word of where it listens in:\n{log}"
    return int(found[1])


def is_serving_in(log: str) -> bool:
    """Whether the log says that the queues are loaded."""
    return re.search(r"kestrel \S+ \((compiled|pure Python)\) serves \d+ queues?\b.*\n", log) is not None


def _memory(pid: int, field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


class Processes:
    """Starts servers in a scratch folder; whatever of them still runs at the end of a `with` is killed.

    Nothing that they do by default reaches outside of the folder: it is their home and their working directory.
    """

    may_fork = False
    """Whether servers may be forks (`tests/server/fork_server.py`). pytest turns it on; benchmarks do not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command: tuple[str, ...] = (str(TWISTD),)
        """What runs twistd; that of another environment serves with what is installed there."""
        self.arguments: tuple[str, ...] = ()
        """Of each server that is started in the foreground."""
        self._mark = f"KESTREL_TEST={uuid.uuid4()}"
        self._servers: list[Child[bytes]] = []

    def write(self, name: str, text: str) -> Path:
        """A file in the folder."""
        path = self.folder / name
        path.write_text(text)
        return path

    def environment(self) -> dict[str, str]:
        """The environment of each process; it carries the mark by which daemons are found again."""
        name, _, value = self._mark.partition("=")
        given = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        home = str(self.folder)
        # This folder comes first in the path of modules, so that a test can put a sitecustomize.py there.
        path = os.pathsep.join([home, str(ROOT)])
        return given | {name: value, "HOME": home, "XDG_STATE_HOME": home + "/state", "PYTHONPATH": path}

    def twistd(
        self,
        *arguments: str,
        daemon: bool = False,
        pidfile: str = "",
        logfile: str | None = None,
        others: Sequence[str] = ("text", "thrift", "admin"),
    ) -> list[str]:
        """The command line that serves with these arguments; where memcache has an endpoint, the others have too."""
        if "--memcache" in arguments:
            others = [f"--{protocol}" for protocol in others if f"--{protocol}" not in arguments]
            arguments += tuple(word for option in others for word in (option, ANY_PORT))
        log = [] if logfile is None else [f"--logfile={logfile}"]
        foreground = [] if daemon else ["--nodaemon"]
        return [*self.command, *foreground, f"--pidfile={pidfile}", *log, "kestrel", *arguments]

    def run(self, *command: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with its output as text."""
        with self._begin(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def _begin(self, command: Sequence[str], **options: Any) -> Child[Any]:
        """Start a command. Fork twistd unless the folder or the environment change what it loads."""
        environment = self.environment()
        loads_more = any((self.folder / name).exists() for name in ("kestrel", "sitecustomize.py", "twisted"))
        is_usual = list(command[:2]) == [str(TWISTD), "--nodaemon"] and "pass_fds" not in options
        forks = self.may_fork and is_usual and not loads_more and "LD_PRELOAD" not in environment
        return (ForkedChild if forks else Child[Any])(
            command,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **options,
        )

    def start(
        self, config: str = "", *arguments: str, log: str | None = None, endpoint: str = ANY_PORT, pidfile: str = ""
    ) -> Server:
        """A server in the foreground with that configuration; `log` is where that says that the log is."""
        path = self.write("kestrel.toml", config)
        others = ("text", "thrift") if "httpPort" in config else ("text", "thrift", "admin")
        command = self.twistd(
            "--config", str(path), "--memcache", endpoint, *self.arguments, *arguments, pidfile=pidfile, others=others
        )
        return self.launch(command, log=log)

    def launch(self, command: Sequence[str], *, log: str | None = None, **options: Any) -> Server:
        """The server that this command runs in the foreground; `options` are those of Popen."""
        output = self.folder / f"server-{len(self._servers)}.out"
        with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
            process = self._begin(command, stdout=out, stderr=err, **options)
        self._servers.append(process)
        return Server(process, output, self.folder / log if log is not None else output)

    def serve(self, config: str = "", *arguments: str, log: str | None = None, endpoint: str = ANY_PORT) -> Server:
        """The same, when it has loaded its queues."""
        return self.start(config, *arguments, log=log, endpoint=endpoint).serves()

    def running(self) -> list[int]:
        """Every process that was started here and still runs, daemons among them."""
        # A fork shows the environment of the process that it was forked from.
        pids = [server.pid for server in self._servers if server.poll() is None and isinstance(server, ForkedChild)]
        mark = self._mark.encode()
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if entry.isdigit() and mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    pids.append(int(entry))
        return pids

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for pid in self.running():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for server in self._servers:
            server.wait()

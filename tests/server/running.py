"""Real server processes for tests, and a simple client. Nothing of them is left behind."""

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
"""The variables of the environment that a server inherits."""

REQUESTS = {
    "memcache": (b"version\r\n", b"VERSION "),
    "text": (b"put work:\nhello\n\n", b"+1\n"),
    "thrift": (b"\0\0\0\x18\x80\x01\0\x01\0\0\0\x0bget_version\0\0\0\0\0", b"\0\0\0"),
}
"""A request of each protocol, and the beginning of its reply."""


def eventually(happened: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
    """Return as soon as `happened` is true. Fail if that takes too long. It polls, because another process cannot
    notify the test.
    """
    deadline = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline, f"after {within_s} s still not: {what}"
        time.sleep(0.005)


@contextmanager
def own_port(port: int = 0) -> Iterator[int]:
    """Yield a reserved port of 127.0.0.1, on which one server at a time may listen: `port`, or a free one for 0."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, so that both can bind the port
        holder.bind(("127.0.0.1", port))
        yield holder.getsockname()[1]


class Client:
    """A blocking connection to this machine, with a time limit for each call.

    `receive_buffer` is a fixed size for the socket's receive buffer, in bytes.
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
        """Send all of the data."""
        self.socket.sendall(data)

    def receive(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer if the server closes the connection."""
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
        """Return the next line with its end, or the bytes before the server closes the connection."""
        while b"\n" not in self._received:
            chunk = self.socket.recv(65536)
            if not chunk:
                break
            self._received += chunk
        line, end, self._received = self._received.partition(b"\n")
        return line + end

    def to_the_end(self) -> bytes:
        """Return everything until the server closes the connection."""
        received = self._received
        self._received = b""
        chunks = [received]
        with suppress(ConnectionError):  # a close with unread bytes arrives as a reset
            while chunk := self.socket.recv(1 << 20):
                chunks.append(chunk)
        return b"".join(chunks)

    def expect(self, reply: bytes) -> None:
        """Check that exactly these bytes come next."""
        assert self.receive(len(reply)) == reply

    def ask(self, request: bytes, reply: bytes) -> None:
        """Send a request, and check that exactly this reply comes next."""
        self.send(request)
        self.expect(reply)

    def put(self, queue: bytes, *items: bytes) -> None:
        """Put the items, all requests at once."""
        self.send(b"".join(set_(queue, item) for item in items))
        self.expect(b"STORED\r\n" * len(items))

    def get(self, key: bytes) -> bytes | None:
        """Return the item of `get key`, or None. `key` may have options."""
        self.send(b"get %b\r\n" % key)
        first = self.line()
        if first == b"END\r\n":
            return None
        assert first.startswith(b"VALUE %b 0 " % key), first
        data = self.receive(int(first.split()[3]))
        self.expect(b"\r\nEND\r\n")
        return data

    def stats(self) -> dict[str, str]:
        """Return the statistics."""
        self.send(b"stats\r\n")
        stats = {}
        while (line := self.line()) != b"END\r\n":
            word, name, value = line.decode("latin-1").split(maxsplit=2)
            assert word == "STAT"
            stats[name] = value.strip()
        return stats

    def stop_sending(self) -> None:
        """Close the sending side only."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server:
    """A server process in the foreground. Its output is in files."""

    def __init__(self, process: Child[bytes], output: Path, log: Path) -> None:
        self.process = process
        self.output = output
        self.log = log

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def stdout(self) -> str:
        """Its standard output so far."""
        return self.output.read_text()

    def stderr(self) -> str:
        """Its standard error so far."""
        return self.output.with_suffix(".err").read_text()

    def logged(self) -> str:
        """Its log so far."""
        return self.log.read_text() if self.log.exists() else ""

    @property
    def port(self) -> int:
        """The port of the first memcache endpoint."""
        return port_in(self.logged())

    def port_of(self, protocol: str) -> int:
        """Return the port of the first endpoint of that protocol."""
        return port_in(self.logged(), protocol)

    def serves(self) -> Self:
        """Return when it has loaded its queues."""

        def is_serving() -> bool:
            assert self.process.poll() is None, f"it ended:\n{self.stdout()}{self.stderr()}{self.logged()}"
            return is_serving_in(self.logged())

        eventually(is_serving, "the server serves")
        return self

    def connect(self, receive_buffer: int | None = None, protocol: str = "memcache") -> Client:
        """Return a new connection."""
        return Client(self.port_of(protocol), receive_buffer)

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def exit_status(self) -> int:
        """Wait for the end, and return the exit status."""
        return self.process.wait()

    def stop(self) -> None:
        """Stop in an orderly way."""
        self.signal(signal.SIGTERM)
        self.exit_status()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def memory_bytes(self) -> int:
        """The resident memory now."""
        return _memory(self.pid, "VmRSS")

    def peak_memory_bytes(self) -> int:
        """The maximum of the resident memory so far."""
        return _memory(self.pid, "VmHWM")

    def cpu_s(self) -> float:
        """The processor time so far, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def open_files(self) -> int:
        """The number of open descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def port_in(log: str, protocol: str = "memcache") -> int:
    """Return the port of the first endpoint of that protocol, from the log."""
    found = re.search(protocol + r": listening on (?:https?://)?127\.0\.0\.1:(\d+)", log)
    assert found, f"no word of where it listens in:\n{log}"
    return int(found[1])


def is_serving_in(log: str) -> bool:
    """Return True if the log says that the queues are loaded."""
    return re.search(r"kestrel \S+ \((compiled|pure Python)\) serves \d+ queues?\b.*\n", log) is not None


def _memory(pid: int, field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


class Processes:
    """Servers in a scratch folder, which is their home and working directory. All are killed at the end of a `with`."""

    may_fork = False
    """Whether servers may be forks (`tests/server/fork_server.py`). pytest turns it on; benchmarks do not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command: tuple[str, ...] = (str(TWISTD),)
        """The command that runs twistd, possibly that of another environment."""
        self.arguments: tuple[str, ...] = ()
        """twistd's options for each server in the foreground."""
        self._mark = f"KESTREL_TEST={uuid.uuid4()}"
        self._servers: list[Child[bytes]] = []

    def write(self, name: str, text: str) -> Path:
        """Write a file in the folder, and return its path."""
        path = self.folder / name
        path.write_text(text)
        return path

    def environment(self) -> dict[str, str]:
        """Return the environment of each process. It has a mark that finds daemons."""
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
        """Return the command line of a server. Protocols without an endpoint get one if memcache has one."""
        if "--memcache" in arguments:
            others = [f"--{protocol}" for protocol in others if f"--{protocol}" not in arguments]
            arguments += tuple(word for option in others for word in (option, ANY_PORT))
        log = [] if logfile is None else [f"--logfile={logfile}"]
        foreground = [] if daemon else ["--nodaemon"]
        return [*self.command, *foreground, f"--pidfile={pidfile}", *log, "kestrel", *arguments]

    def run(self, *command: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Its output is text."""
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
        """Start a server in the foreground with that configuration. `log` is the file that the configuration names."""
        path = self.write("kestrel.toml", config)
        others = ("text", "thrift") if "httpPort" in config else ("text", "thrift", "admin")
        command = self.twistd(
            "--config", str(path), "--memcache", endpoint, *self.arguments, *arguments, pidfile=pidfile, others=others
        )
        return self.launch(command, log=log)

    def launch(self, command: Sequence[str], *, log: str | None = None, **options: Any) -> Server:
        """Start a server in the foreground by this command, with these options of Popen."""
        output = self.folder / f"server-{len(self._servers)}.out"
        with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
            process = self._begin(command, stdout=out, stderr=err, **options)
        self._servers.append(process)
        return Server(process, output, self.folder / log if log is not None else output)

    def serve(self, config: str = "", *arguments: str, log: str | None = None, endpoint: str = ANY_PORT) -> Server:
        """Start a server in the foreground, and return it when it has loaded its queues."""
        return self.start(config, *arguments, log=log, endpoint=endpoint).serves()

    def running(self) -> list[int]:
        """Return the ids of all processes that were started here and still run, including daemons."""
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

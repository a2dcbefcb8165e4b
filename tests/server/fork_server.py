"""Servers that are forks of a process which has imported twistd and the server, because imports are most of a start.

The forks are children of the test process, as if it had started them itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.child import Child

ROOT: Final = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36

_prctl: Final = ctypes.CDLL(None).prctl


class ForkServer:
    """The process that forks, as the test process sees it. It ends with the test process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with theirs:
            self._process = Child[bytes](
                [sys.executable, "-m", "tests.server.fork_server", str(theirs.fileno()), str(os.getpid())],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def fork(self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], streams: Sequence[int]) -> int:
        """Run twistd in a fork, with these standard streams and in a session of its own. Return its process id."""
        request = json.dumps([list(command), str(cwd), dict(environment)]).encode()
        with self._lock, _adopting_orphans():
            socket.send_fds(self._socket, [request], streams)
            pid = int(self._socket.recv(64))
            assert self._socket.recv(64) == b"orphaned"
        return pid


@cache
def fork_server() -> ForkServer:
    """Return the fork server of this test process."""
    return ForkServer()


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Become the parent of descendants whose parent ends."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(PR_SET_CHILD_SUBREAPER, 0)


class ForkedChild(Child[Any]):
    """A twistd that the fork server has started. The arguments must be those of `Processes`."""

    def __init__(self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], **options: Any) -> None:
        self._request = command, cwd, env
        super().__init__(command, cwd=cwd, env=env, **options)

    def _execute_child(self, *arguments: Any) -> None:
        stdin, stdin_write, stdout_read, stdout, stderr_read, stderr = arguments[10:16]
        try:
            self.pid = fork_server().fork(*self._request, [stdin, stdout, stderr])
            self._child_created = True
        finally:
            close: Callable[..., None] = self._close_pipe_fds  # type: ignore[attr-defined]
            close(stdin, stdin_write, stdout_read, stdout, stderr_read, stderr)


def _wait_for_a_request(requests: socket.socket) -> tuple[tuple[list[str], str, dict[str, str]], list[int]]:
    """Return in each fork, with its request and its standard streams."""
    while True:
        request, streams, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not request:
            os._exit(0)
        orphaning = os.fork()
        if orphaning == 0:
            if pid := os.fork():
                requests.send(b"%d" % pid)
                os._exit(0)
            return json.loads(request), streams
        os.waitpid(orphaning, 0)
        requests.send(b"orphaned")
        for stream in streams:
            os.close(stream)


def main() -> None:
    """Import what a server imports, and run twistd in a fork for each request."""
    # The reactor itself must not be imported, because forks would share its epoll object.
    from twisted.internet import epollreactor  # noqa: F401
    from twisted.scripts.twistd import run

    from kestrel.server import maker  # noqa: F401

    requests, tester = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    (sys.argv, cwd, environment), streams = _wait_for_a_request(requests)
    requests.close()
    while os.getppid() != tester:
        time.sleep(0.0001)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:1] = [str(Path(sys.argv[0]).parent), *environment["PYTHONPATH"].split(os.pathsep)]
    sys.exit(run())


if __name__ == "__main__":
    main()

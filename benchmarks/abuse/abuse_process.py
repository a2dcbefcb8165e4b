"""The description of an abuse, and the process that runs it.

The ordinary client must wait for the server, not for the abuser. So the abuser is a process of its own with a higher
nice value. It pauses whenever it has used more than its share of a core.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

from tests.server.running import Client, Server

NICE: Final = 5
SHARE: Final = 0.3
"""The abuser's share of a core, by its own CPU time."""
PAUSE_S: Final = 0.002
END_S: Final = 60.0
"""Seconds that an abuser may take to finish after its time is over."""

Fates = Counter[str]
"""Outcomes for the abuser: how often each happened."""


class Place:
    """The server's ports and folder, and the time limit of an abuser. It counts outcomes."""

    def __init__(self, ports: Mapping[str, int], folder: Path, seconds: float, seed: int) -> None:
        self.ports = ports
        self.folder = folder
        self.fates: Fates = Counter()
        self.dice = random.Random(seed)
        self.began = time.monotonic()
        self._until = self.began + seconds
        self._cpu_s = time.process_time()

    def goes_on(self) -> bool:
        """Return True if there is time left. Pause first if the abuser has used too much CPU time."""
        while (now := time.monotonic()) < self._until:
            if time.process_time() - self._cpu_s <= SHARE * (now - self.began) + PAUSE_S:
                return True
            time.sleep(PAUSE_S)
        return False

    def pause(self, seconds: float) -> None:
        """Sleep for that many seconds, but not beyond the time limit."""
        time.sleep(max(0.0, min(seconds, self._until - time.monotonic())))

    def connect(self, protocol: str = "memcache", receive_buffer: int | None = None) -> Client:
        """Return a connection with a timeout of five seconds."""
        client = Client(self.ports[protocol], receive_buffer)
        client.socket.settimeout(5)
        return client

    def lot(self, count: int, protocol: str = "memcache", receive_buffer: int | None = None) -> list[Client]:
        """Return that many connections, or as many as there is time for."""
        clients: list[Client] = []
        while len(clients) < count and self.goes_on():
            clients.append(self.connect(protocol, receive_buffer))
        return clients

    def is_hung_up_on(self, client: Client) -> bool:
        """Return True if the server has closed the connection. Count whether it sent anything before."""
        client.socket.setblocking(False)
        said = b""
        try:
            while piece := client.socket.recv(4096):
                said = (said + piece)[-4096:]
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        finally:
            client.socket.settimeout(5)
        self.fates["disconnected" if not said else "disconnected with a message"] += 1
        return True

    def send_what_is_taken(self, client: Client, data: bytes | memoryview) -> int:
        """Send without blocking. Return the number of bytes that the system accepted; -1 if the server has hung up."""
        client.socket.setblocking(False)
        sent = 0
        try:
            while sent < len(data):
                sent += client.socket.send(data[sent : sent + 65536])
        except BlockingIOError:
            pass
        except ConnectionError:
            return -1
        finally:
            client.socket.settimeout(5)
        return sent

    def reply_line(self, client: Client) -> bytes:
        """Return the next line; empty if the server has hung up."""
        with suppress(ConnectionError):
            return client.line()
        return b""


def nothing(server: Server) -> None:
    """Do nothing. The default of `Abuse.prepare`."""


def nothing_wrong(server: Server) -> Sequence[str]:
    """Return no complaints. The default of `Abuse.check`."""
    return ()


def no_arguments(folder: Path) -> Sequence[str]:
    """Return no arguments. The default of `Abuse.arguments`."""
    return ()


class Abuse(NamedTuple):
    """A kind of abuse. `act` runs in a process of its own, as long as `Place.goes_on` returns True."""

    name: str
    act: Callable[[Place], None]
    most_mib: int
    """The limit of the server's memory growth in MiB."""
    config: str = ""
    prepare: Callable[[Server], None] = nothing
    check: Callable[[Server], Sequence[str]] = nothing_wrong
    """Called after the abuse, when the server is quiet again. Returns complaints."""
    arguments: Callable[[Path], Sequence[str]] = no_arguments
    files: Mapping[str, str] = {}
    """Files to write to the server's folder before it starts, by path."""


@contextmanager
def at_work(abuse: Abuse, ports: Mapping[str, int], folder: Path, seconds: float, seed: int) -> Iterator[Fates]:
    """Run the abuse while the block runs. The yielded outcomes are filled in at its end. Raise if the abuser failed."""
    context = multiprocessing.get_context("fork")
    ours, its = context.Pipe(duplex=False)
    process = context.Process(target=_commit, args=(abuse, ports, folder, seconds, seed, its), daemon=True)
    fates: Fates = Counter()
    process.start()
    its.close()
    try:
        yield fates
        if not ours.poll(seconds + END_S):
            raise RuntimeError("the abuser did not finish")
        told = ours.recv()
        if isinstance(told, str):
            raise RuntimeError(f"the abuser failed: {told}")
        fates.update(told)
    finally:
        process.kill()
        process.join()
        ours.close()


def _commit(
    abuse: Abuse, ports: Mapping[str, int], folder: Path, seconds: float, seed: int, told: Connection
) -> None:
    os.nice(NICE)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    place = Place(ports, folder, seconds, seed)
    try:
        abuse.act(place)
        told.send(place.fates)
    except BaseException as error:
        told.send(f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    # Close the connections without running cleanup code of the forked parent.
    os._exit(0)


def reset(client: Client) -> None:
    """Close a connection with a reset."""
    with suppress(OSError):
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()

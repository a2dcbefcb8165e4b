"""What an abuse is, and the process that commits it.

It must be the server that the ordinary client waits for, and not the abuser's own work: the abuser is a process of its
own, nicer than the others, and pauses whenever it has taken more than its share of a core.
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
"""Of a core, by the abuser's own count of its seconds of a processor."""
PAUSE_S: Final = 0.002
END_S: Final = 60.0
"""So long after its time it may take an abuser to come to its end."""

Fates = Counter[str]
"""What became of the abuser: words to how often."""


class Place:
    """Where an abuser is at work, and until when."""

    def __init__(self, ports: Mapping[str, int], folder: Path, seconds: float, seed: int) -> None:
        self.ports = ports
        self.folder = folder
        self.fates: Fates = Counter()
        self.dice = random.Random(seed)
        self.began = time.monotonic()
        self._until = self.began + seconds
        self._cpu_s = time.process_time()

    def goes_on(self) -> bool:
        """Whether there is time for more; pauses first if it has worked too much."""
        while (now := time.monotonic()) < self._until:
            if time.process_time() - self._cpu_s <= SHARE * (now - self.began) + PAUSE_S:
                return True
            time.sleep(PAUSE_S)
        return False

    def pause(self, seconds: float) -> None:
        """Do nothing, but not beyond the end."""
        time.sleep(max(0.0, min(seconds, self._until - time.monotonic())))

    def connect(self, protocol: str = "memcache", receive_buffer: int | None = None) -> Client:
        """A connection that gives up soon."""
        client = Client(self.ports[protocol], receive_buffer)
        client.socket.settimeout(5)
        return client

    def lot(self, count: int, protocol: str = "memcache", receive_buffer: int | None = None) -> list[Client]:
        """So many connections, or as many as there is time for."""
        clients: list[Client] = []
        while len(clients) < count and self.goes_on():
            clients.append(self.connect(protocol, receive_buffer))
        return clients

    def is_hung_up_on(self, client: Client) -> bool:
        """Whether the server has closed that connection by now, which is noted, with its last words."""
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
        self.fates["hung up on" if not said else "told why and hung up on"] += 1
        return True

    def send_what_is_taken(self, client: Client, data: bytes | memoryview) -> int:
        """Send without waiting; returns how many bytes the other side had room for, -1 if it has hung up."""
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
        """The next line; empty when the server has hung up."""
        with suppress(ConnectionError):
            return client.line()
        return b""


def nothing(server: Server) -> None:
    """What most need before."""


def nothing_wrong(server: Server) -> Sequence[str]:
    """What is wrong afterwards."""
    return ()


def no_arguments(folder: Path) -> Sequence[str]:
    """What most servers are started with."""
    return ()


class Abuse(NamedTuple):
    """One kind. `act` runs in a process of its own, for as long as its place `goes_on`."""

    name: str
    act: Callable[[Place], None]
    most_mib: int
    """By so much may the server grow."""
    config: str = ""
    prepare: Callable[[Server], None] = nothing
    check: Callable[[Server], Sequence[str]] = nothing_wrong
    """Called at the end, when the server is in quiet again."""
    arguments: Callable[[Path], Sequence[str]] = no_arguments
    files: Mapping[str, str] = {}
    """Put into the server's folder before it starts."""


@contextmanager
def at_work(abuse: Abuse, ports: Mapping[str, int], folder: Path, seconds: float, seed: int) -> Iterator[Fates]:
    """Meanwhile the abuse goes on; what became of it is there at the end. Raises if the abuser itself failed."""
    context = multiprocessing.get_context("fork")
    ours, its = context.Pipe(duplex=False)
    process = context.Process(target=_commit, args=(abuse, ports, folder, seconds, seed, its), daemon=True)
    fates: Fates = Counter()
    process.start()
    its.close()
    try:
        yield fates
        if not ours.poll(seconds + END_S):
            raise RuntimeError("the abuser came to no end")
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
    os._exit(0)  # which closes what is still open, and runs nothing of the process that this is a copy of


def reset(client: Client) -> None:
    """Leave without an orderly end."""
    with suppress(OSError):
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()

"""The command of examples/cluster starts, restarts and stops its servers."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

from tests.child import Child
from tests.cluster.zookeeper import ZooKeeper
from tests.server.running import PATIENCE_S, ROOT, Processes, eventually, own_port

RUN: Final = ROOT / "examples" / "cluster" / "run.py"
PORTS_EACH: Final = 10
PORT_RANGE: Final = (10_000, 32_000)
"""Ports that the system gives to no connection by itself, so many consecutive ones are free."""


class Example:
    """The running command."""

    def __init__(self, processes: Processes, *arguments: str) -> None:
        self._output = processes.folder / "said"
        with self._output.open("wb") as output:
            self.process = Child[bytes](
                [sys.executable, RUN, *arguments],
                cwd=processes.folder,
                env=processes.environment(),  # its variables find all processes that are left behind
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def said(self) -> str:
        return self._output.read_text()

    def says(self, pattern: str, times: int = 1) -> list[str]:
        """Wait until its output has that many matches of the pattern. Return them."""

        def has_said() -> bool:
            found = re.findall(pattern, self.said())
            assert len(found) >= times or self.process.poll() is None, self.said()
            return len(found) >= times

        eventually(has_said, f"it says {pattern}")
        return re.findall(pattern, self.said())

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)


@contextmanager
def ports_for(servers: int) -> Iterator[int]:
    """Yield the first of enough consecutive ports for that many servers. They are reserved as by `own_port`."""
    wanted = servers * PORTS_EACH
    for _ in range(1000):
        first = random.randrange(*PORT_RANGE, wanted)
        with ExitStack() as held:
            try:
                for port in range(first, first + wanted):
                    held.enter_context(own_port(port))
            except OSError:
                continue
            yield first
            return
    raise AssertionError(f"there are no {wanted} free consecutive ports")


def kestrel_cli(processes: Processes, *arguments: str) -> str:
    done = processes.run(sys.executable, "-m", "kestrel.tools.cli.command", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.needs("java")
def test_command_starts_cluster_and_signal_stops_it(processes: Processes) -> None:
    with own_port() as zookeeper, ports_for(2) as base:
        example = Example(processes, "--servers", "2", "--zookeeper-port", str(zookeeper), "--base-port", str(base))
        example.says("Ctrl-C stops everything")
        commands = re.findall(r"^    \S*kestrel-cli (.*?)(?: *#.*)?$", example.said(), re.MULTILINE)
        assert [command.split()[2] for command in commands] == ["servers", "put", "get", "status", "status"]
        printed = [kestrel_cli(processes, *command.split()) for command in commands]
        assert printed[1:3] == ["1 item put\n", "hello\n"]
        assert set(printed[3].splitlines()) == {f"127.0.0.1:{base}: Up", f"127.0.0.1:{base + PORTS_EACH}: Up"}
        example.says("gets go to server 1, server 2; puts go to server 2\n")
        (pid,) = example.says(r"server 2 starts \(process (\d+)\)")
        os.kill(int(pid), signal.SIGKILL)
        example.says("server 2 has ended by signal 9 and will be restarted in 5 s")
        assert example.stop() == 0
        assert example.said().endswith(
            "server 2 was not running\nserver 1 has stopped\nZooKeeper has stopped\neverything has stopped\n"
        )
        assert processes.running() == []


def test_running_zookeeper_is_used_and_not_stopped(
    processes: Processes, zookeeper: ZooKeeper, prefix: str
) -> None:
    with ports_for(1) as base:
        given = ("--zookeeper", zookeeper.hosts, "--path", prefix)
        example = Example(processes, "--servers", "1", "--base-port", str(base), *given)
        example.says("Ctrl-C stops everything")
        assert len(zookeeper.client.get_children(f"{prefix}/write")) == 1
        assert example.stop() == 0
        assert zookeeper.client.get_children(f"{prefix}/write") == []
        assert "ZooKeeper has stopped" not in example.said()


def test_failed_start_is_reported_with_the_way_out(
    processes: Processes, zookeeper: ZooKeeper, prefix: str
) -> None:
    taken = str(zookeeper.port)
    same = Example(processes, "--zookeeper-port", taken)
    same.says(f"for a ZooKeeper use --zookeeper 127.0.0.1:{taken}; otherwise choose another --zookeeper-port")
    assert same.process.wait(PATIENCE_S) == 1
    ports = Example(processes, "--base-port", taken, "--zookeeper", zookeeper.hosts, "--path", prefix)
    ports.says(f"port {taken} of 127.0.0.1 cannot be listened on .*: choose another --base-port")
    assert ports.process.wait(PATIENCE_S) == 1
    with own_port() as away:
        nobody = Example(processes, "--zookeeper", f"127.0.0.1:{away}")
        nobody.says(f"the server sets cannot be read from zk://127.0.0.1:{away}/services/kestrel: Connection refused")
        assert nobody.process.wait(PATIENCE_S) == 1
    assert processes.running() == []

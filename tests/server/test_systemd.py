"""The systemd units in tap-configs: their ports, passed as systemd does, and the command of the service."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.server.running import REQUESTS, ROOT, TWISTD, Client, Processes, Server, eventually

UNITS: Final = ROOT / "tap-configs"
SERVICE: Final = (UNITS / "kestrel.service").read_text()
SOCKET: Final = (UNITS / "kestrel.socket").read_text()

PORTS: Final = {"memcache": 22133, "text": 2222, "thrift": 2229}

HAND_OVER: Final = """
import fcntl, os, sys
count = int(sys.argv[1])
out_of_the_way = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in sys.argv[2 : 2 + count]]
for number, fd in enumerate(out_of_the_way, start=3):
    os.dup2(fd, number)
    os.close(fd)
os.environ |= {"LISTEN_FDS": str(count), "LISTEN_PID": str(os.getpid())}
os.environ["LISTEN_FDNAMES"] = ":".join(["kestrel.socket"] * count)
os.execv(sys.argv[2 + count], sys.argv[2 + count :])
"""
"""Do what systemd does between fork and exec: pass sockets from descriptor 3 on, and their variables."""


def settings(unit: str, name: str) -> list[str]:
    """Return the values of a setting in a unit, one for each line."""
    return re.findall(rf"^{name}=(.*)$", unit.replace("\\\n", ""), re.MULTILINE)


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Return a listening socket for each port of the unit, in its order."""
    with ExitStack() as stack:
        listening = []
        for _ in settings(SOCKET, "ListenStream"):
            each = stack.enter_context(socket.socket())
            each.bind(("127.0.0.1", 0))
            each.listen()
            listening.append(each)
        yield listening


def start(processes: Processes, sockets: list[socket.socket]) -> Server:
    """Start the service as systemd does."""
    config = (UNITS / "systemd.toml").read_text().replace("/var/lib/kestrel", str(processes.folder))
    processes.write("kestrel.toml", config)
    (line,) = settings(SERVICE, "ExecStart")
    twistd, *arguments = shlex.split(line)
    assert twistd == "/opt/kestrel/bin/twistd"
    assert arguments[arguments.index("--config") + 1] == "/etc/kestrel/kestrel.toml"
    arguments[arguments.index("--config") + 1] = "kestrel.toml"
    given = [str(each.fileno()) for each in sockets]
    command = [sys.executable, "-c", HAND_OVER, str(len(given)), *given, str(TWISTD), *arguments]
    return processes.launch(command, pass_fds=[each.fileno() for each in sockets])


def test_each_protocol_is_served_on_its_port(processes: Processes, sockets: list[socket.socket]) -> None:
    server = start(processes, sockets).serves()
    assert settings(SOCKET, "ListenStream") == [f"0.0.0.0:{port}" for port in PORTS.values()]
    for protocol, listening in zip(PORTS, sockets, strict=True):
        port = listening.getsockname()[1]
        assert server.port_of(protocol) == port
        request, reply = REQUESTS[protocol]
        with Client(port) as client:
            client.ask(request, reply)
    server.stop()
    assert server.exit_status() == 0
    assert "Traceback" not in server.logged() + server.stderr()


def test_clients_wait_during_a_restart(processes: Processes, sockets: list[socket.socket]) -> None:
    server = start(processes, sockets).serves()
    port = server.port
    with Client(port) as client:
        client.put(b"work", b"one")
    server.stop()
    with Client(port) as waiting:
        waiting.send(b"get work\r\n")
        start(processes, sockets).serves()
        waiting.expect(b"VALUE work 0 3\r\none\r\nEND\r\n")


def test_reload_of_the_unit_reloads_the_configuration(processes: Processes, sockets: list[socket.socket]) -> None:
    (reload,) = settings(SERVICE, "ExecReload")
    kill, hang_up, whom = reload.split()
    assert (Path(kill).name, hang_up, whom) == ("kill", "-HUP", "$MAINPID")
    server = start(processes, sockets).serves()
    server.signal(signal.SIGHUP)
    eventually(lambda: "The configuration was reloaded" in server.logged(), "it reloads")


@pytest.mark.parametrize("which", ["index=0", "name=kestrel.socket"])
def test_start_without_systemd_is_reported_in_one_sentence(processes: Processes, which: str) -> None:
    endpoint = f"systemd:domain=INET:{which}"
    done = processes.run(*processes.twistd("--memcache", endpoint))
    assert done.returncode == 78
    assert done.stderr == f"kestrel: {endpoint!r} is not one of the sockets that systemd passed to this process\n"


@pytest.fixture
def units(tmp_path: Path) -> list[str]:
    """Return the units, with the path of an existing command."""
    paths = []
    for name, unit in (("kestrel.service", SERVICE), ("kestrel.socket", SOCKET)):
        path = tmp_path / name
        path.write_text(unit.replace("/opt/kestrel/bin/twistd", str(TWISTD)))
        paths.append(str(path))
    return paths


@pytest.mark.needs("systemd-analyze")
def test_systemd_accepts_the_units(processes: Processes, units: list[str]) -> None:
    done = processes.run("systemd-analyze", "verify", "--man=no", *units)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.needs("systemd-analyze")
def test_systemd_rates_the_service_as_well_confined(processes: Processes, units: list[str]) -> None:
    done = processes.run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", units[0])
    assert done.returncode == 0, done.stdout + done.stderr


def test_configuration_uses_only_folders_that_the_unit_allows(processes: Processes) -> None:
    (folder,) = settings(SERVICE, "StateDirectory")
    paths = re.findall(r'^\w+ = "(/.*)"$', (UNITS / "systemd.toml").read_text(), re.MULTILINE)
    assert len(paths) == 2
    assert all(path.startswith(f"/var/lib/{folder}/") for path in paths)

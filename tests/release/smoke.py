"""Runs every command of an installed wheel, in an environment and a folder of its own.

    python tests/release/smoke.py [--python PYTHON] dist/kestrel_mq-1.0.0-py3-none-any.whl

creates an empty environment with that Python, installs the wheel there, and runs each command of the wheel. A command
that is missing in `ACTIONS` is an error. This module imports only the standard library, and nothing of the checkout.
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

PATIENCE_S: Final = 60.0
LONG_S: Final = 480.0
CONFIGS: Final = Path("share", "kestrel", "tap-configs")
"""The folder of the configurations in an environment."""

ANY_PORT: Final = "tcp:0:interface=127.0.0.1"
PROTOCOLS: Final = ("memcache", "text", "thrift", "admin")
SPARK: Final = r"pyspark.* not installed: pip install 'kestrel-mq\[spark\]'"


class Action(NamedTuple):
    """A command line with its expected output and exit status.

    ``{version}`` in the texts is that of the wheel, and ``{memcache}`` and others are ports of the server.
    """

    line: str
    says: str = ""
    """A regular expression for standard output or standard error."""
    status: int = 0
    stdin: str = ""


CLIENT: Final = """\
python -c '
from kestrel.client.blocking import BlockingClient
with BlockingClient("127.0.0.1:{memcache}") as client:
    client.put("python", b"hello")
    print(client.get("python"))
'"""

SERVED: Final = (
    Action("kestrel-cli put work hello 'two words'", "^2 items put"),
    Action("kestrel-cli put work", "^1 item put", stdin="three\n"),
    Action("kestrel-cli peek work", "^hello$"),
    Action("kestrel-cli get work", "^hello$"),
    Action("kestrel-cli --server 127.0.0.1:{thrift} --protocol thrift put work four", "^1 item put"),
    Action("kestrel-cli --server 127.0.0.1:{thrift} --protocol thrift get work", "^two words$"),
    Action(CLIENT, "^b'hello'$"),
    Action("kestrel-cli get none", "^$", status=1),
    Action("kestrel-cli stats work", r"^work +2 "),
    Action("kestrel-cli top --once --interval 100ms --admin http://127.0.0.1:{admin}", "work"),
    Action("kestrel-cli status", "^Up$"),
    Action("kestrel-cli dump-config work", "work"),
    Action("kestrel-cli version", "{version}"),
    Action("kestrel-load flood --items 100", "each came once$"),
    Action("kestrel-worker nothing:here --queue work", "there is no module nothing", status=2),
    Action("kestrel-cli --server zk://127.0.0.1:1/none get work", r"pip install 'kestrel-mq\[cluster\]'", status=2),
)
"""Actions while the server runs, which is the default of kestrel-cli."""

LEFT: Final = (
    Action("kestrel-qdump -Q var/queues/work", "^three\nfour$"),
    Action("kestrel-qpack --verify var/queues", "^work: ok: .* 2 items"),
    Action("kestrel-qpack var/queues", "^work: packed: .* 2 items"),
    Action("kestrel-convert journal:var/queues scroll:scrolls", "^3 queues, 2 items: "),
    Action("kestrel-qdump -q scrolls", "left: 2 items"),
    Action("kestrel-convert-config -", '^queuePath = "/srv"$', stdin='new KestrelConfig { queuePath = "/srv" }'),
    Action("kestrel-report var/queues", SPARK, status=2),
    Action("kestrel-fleet verify var/queues", SPARK, status=2),
)
"""Actions after the server has stopped, with its files."""

ACTIONS: Final = (*SERVED, *LEFT)


class SmokeFailed(Exception):
    """An action with another result. The text has the command, and the expected and actual results."""


class Installed:
    """An environment with the wheel, and an empty folder to work in."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.environment = environment
        self.folder = folder
        self.known: dict[str, str] = {}
        """Values of the names in actions."""

    def variables(self) -> dict[str, str]:
        """Return the environment variables of each process, independent of those of this one."""
        path = os.pathsep.join([str(self.environment / "bin"), "/usr/bin", "/bin"])
        given = {"PATH": path, "HOME": str(self.folder), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        if "memcache" in self.known:
            given["KESTREL_SERVERS"] = f"127.0.0.1:{self.known['memcache']}"
        return given

    def run(self, action: Action) -> str:
        """Run an action, and return its output. Raise `SmokeFailed` for an unexpected result."""
        line = action.line.format_map(self.known)
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=self.folder,
            env=self.variables(),
            input=action.stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        said = done.stdout + done.stderr
        wanted = re.sub(r"\{(\w+)\}", lambda name: re.escape(self.known[name[1]]), action.says)
        if done.returncode != action.status or not re.search(wanted, said, re.MULTILINE):
            raise SmokeFailed(
                f"{line}\nwanted: status {action.status}, {wanted!r}\ncame: status {done.returncode}\n{said}"
            )
        if "Traceback" in said:
            raise SmokeFailed(f"{line}\n{said}")
        print(f"{line}: {' | '.join(said.splitlines()[:3])[:100]}", flush=True)
        return said

    @contextmanager
    def server(self) -> Iterator[None]:
        """Run a server on free ports, and stop it in order at the end."""
        config = self.environment / CONFIGS / "development.toml"
        endpoints = [word for protocol in PROTOCOLS for word in (f"--{protocol}", ANY_PORT)]
        twistd = str(self.environment / "bin" / "twistd")
        command = [twistd, "--nodaemon", "--pidfile=", "kestrel", "--config", str(config)]
        log = self.folder / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *endpoints], cwd=self.folder, env=self.variables(), stdout=output, stderr=output
            )
        try:
            self.known |= self._listened(process, log)
            yield
            process.send_signal(signal.SIGTERM)
            status = process.wait(PATIENCE_S)
            if status != 0 or "Traceback" in log.read_text():
                raise SmokeFailed(f"the server stopped with {status}:\n{log.read_text()}")
        finally:
            process.kill()
            process.wait()

    def _listened(self, process: subprocess.Popen[bytes], log: Path) -> dict[str, str]:
        """Return the port of each protocol when the server is ready."""
        end = time.monotonic() + PATIENCE_S
        while not re.search(r"kestrel \S+ \((compiled|pure Python)\) serves ", log.read_text()):
            if process.poll() is not None or time.monotonic() > end:
                raise SmokeFailed(f"the server does not serve:\n{log.read_text()}")
            time.sleep(0.05)
        print(next(line for line in log.read_text().splitlines() if " serves " in line), flush=True)
        return dict(re.findall(r"(\w+): listening on (?:https?://)?127\.0\.0\.1:(\d+)", log.read_text()))


def commands_of(wheel: Path) -> list[str]:
    """Return the commands in the metadata of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/entry_points.txt"))
        entry_points = configparser.ConfigParser(delimiters=["="])
        entry_points.optionxform = str  # type: ignore[assignment]
        entry_points.read_string(archive.read(name).decode())
    return sorted(entry_points["console_scripts"])


def version_of(wheel: Path) -> str:
    """Return the version in the file name of the wheel."""
    return wheel.name.split("-")[1]


def smoke(wheel: Path, installed: Installed) -> None:
    """Run every command of the wheel, and a server. Raise `SmokeFailed` for the first unexpected result."""
    commands = commands_of(wheel)
    idle = set(commands) - {action.line.split()[0] for action in ACTIONS}
    if idle:
        raise SmokeFailed(f"nothing is done with {', '.join(sorted(idle))}: say what, in {Path(__file__).name}")
    installed.known["version"] = version_of(wheel)
    for command in commands:
        installed.run(Action(f"{command} --help", "(?s)^examples:$.*^exit status: 0"))
        installed.run(Action(f"{command} --version", f"^{command} {{version}}$"))
        installed.run(Action(f"{command} --print-completion bash", f"^complete .*{command}$"))
    installed.run(Action("twistd kestrel --help", "(?s)--help-storage.*^examples:$"))
    installed.run(Action("twistd kestrel --version", "^kestrel {version}$"))
    installed.run(Action("twistd kestrel --help-storage", "journal:"))
    for name in ("development", "production"):
        config = installed.environment / CONFIGS / f"{name}.toml"
        installed.run(Action(f"twistd kestrel --config '{config}' --validate", "^The configuration is valid"))
    with installed.server():
        for action in SERVED:
            installed.run(action)
        _speak_text(int(installed.known["text"]))
    for action in LEFT:
        installed.run(action)


def _speak_text(port: int) -> None:
    """Use the text protocol, which no command uses."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        client.sendall(b"put typed:\nhello\n\nget typed\ndelete typed\nquit\n")
        with client.makefile("rb") as replies:
            said = replies.read()
    if said[:11] != b"+1\n:hello\n+":
        raise SmokeFailed(f"the text protocol answers {said!r}")
    print(f"text protocol: {said!r}", flush=True)


def make_environment(folder: Path, wheel: Path, python: str) -> Path:
    """Create an environment with the wheel and its requirements, which pip downloads."""
    environment = folder / "environment"
    subprocess.run([python, "-m", "venv", str(environment)], check=True, timeout=LONG_S)
    pip = [str(environment / "bin" / "pip"), "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, str(wheel.absolute())], cwd=folder, check=True, timeout=LONG_S)
    return environment


def main() -> int:
    """Run the command, and return its exit status."""
    parser = argparse.ArgumentParser(description="Install a wheel in an empty environment and try all that it brings.")
    parser.add_argument("wheel", type=Path, metavar="WHEEL")
    parser.add_argument("--python", default=sys.executable, help="the Python to install it for (default: this one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kestrel-smoke-") as name:
        folder = Path(name)
        work = folder / "work"
        work.mkdir()
        try:
            smoke(arguments.wheel, Installed(make_environment(folder, arguments.wheel, arguments.python), work))
        except SmokeFailed as failed:
            print(f"\nfailed: {failed}", file=sys.stderr)
            return 1
    print(f"{arguments.wheel.name}: every command works")
    return 0


if __name__ == "__main__":
    sys.exit(main())

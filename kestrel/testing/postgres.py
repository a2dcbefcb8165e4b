"""A private PostgreSQL server for tests, with its own data folder and Unix socket, which is deleted afterwards.

    with PrivateServer() as server:
        psycopg.connect(server.conninfo)

It uses the programs of Debian's package `postgresql` and does not touch other clusters. If the tests run as root, the
server runs as the user `postgres`, because PostgreSQL refuses to run as root.

    python -m kestrel.testing.postgres FOLDER

creates a template in FOLDER. With KESTREL_PG_TEMPLATE=FOLDER in the environment each new server starts with a copy of
it, which is much faster than `initdb`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

PATIENCE_S: Final = 60.0
"""Time limit for a start or stop of the server."""

MEMORY: Final = "/dev/shm"
"""Memory filesystem, if the system has one."""

UNPRIVILEGED: Final = "postgres"
"""User that Debian's package creates."""


def programs() -> Path | None:
    """Return the program folder of the newest installed PostgreSQL, or None. Debian does not put it on PATH."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if found:
        return max(found, key=lambda path: int(path.parent.name))
    initdb = shutil.which("initdb")
    return None if initdb is None else Path(initdb).resolve().parent


def as_unprivileged(command: list[str | Path]) -> list[str | Path]:
    """Return a command that runs `command` as a non-root user, and ends it when this process ends."""
    # pdeathsig works even if this process is killed.
    setpriv: list[str | Path] = ["setpriv", "--pdeathsig=QUIT"]
    if os.geteuid() == 0:
        setpriv += [f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--init-groups"]
    return [*setpriv, *command]


def make_data_folder(folder: Path) -> None:
    """Create a data folder that the user of the server owns. Its parent must exist."""
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        shutil.chown(folder, UNPRIVILEGED, UNPRIVILEGED)


def fill(command: list[str | Path]) -> None:
    """Run a command that fills a data folder."""
    subprocess.run(as_unprivileged(command), check=True, capture_output=True)


def initdb(found: Path, data: Path) -> list[str | Path]:
    """Return the command that creates a database in an empty data folder, with the programs in `found`."""
    options = ("-U", UNPRIVILEGED, "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
    return [found / "initdb", "-D", data, *options]


class PrivateServer:
    """A PostgreSQL server that a test can start, stop, kill and freeze.

    It creates a folder that every user may enter, as the user `postgres` must. The server does not sync by default,
    which only a crash of the machine would reveal. With `is_synced` it syncs, and the folder is on a disk.
    With `standby_of` it is a standby of a running server. `settings` are those of postgresql.conf.
    """

    def __init__(
        self,
        *,
        is_synced: bool = False,
        standby_of: PrivateServer | None = None,
        **settings: str,
    ) -> None:
        found = programs()
        if found is None:
            raise FileNotFoundError("PostgreSQL is not installed (Debian: apt-get install postgresql)")
        self._programs = found
        self._primary = standby_of
        self._settings = {
            "listen_addresses": "",
            # Keeps the shared memory that a kill leaves behind in the folder.
            "dynamic_shared_memory_type": "mmap",
            "fsync": "on" if is_synced else "off",
            "full_page_writes": "on" if is_synced else "off",
            **settings,
        }
        self._parent = MEMORY if not is_synced and os.path.isdir(MEMORY) else None
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path()
        """Folder of the data, the socket and the log."""

    def __enter__(self) -> PrivateServer:
        self.folder = Path(tempfile.mkdtemp(prefix="kestrel-pg-", dir=self._parent))
        try:
            self._create()
            self.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    @property
    def conninfo(self) -> str:
        """Connection string of the superuser."""
        return f"host={self.folder} user={UNPRIVILEGED} dbname=postgres"

    @property
    def socket(self) -> Path:
        """Path of the Unix socket of the server."""
        return self.folder / ".s.PGSQL.5432"

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        assert self._process is not None, "it is not running"
        return self._process.pid

    def log(self) -> str:
        """Return the log of the server."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start the server and wait until it is ready. After a kill it first recovers."""
        assert self._process is None, "it is running"
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                as_unprivileged(
                    [
                        *(self._programs / "postgres", "-D", self.folder / "data", "-k", self.folder, "-p", "5432"),
                        *settings,
                    ]
                ),
                stdout=log,
                stderr=log,
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """Stop the server in order and disconnect clients (mode `fast`)."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the postmaster and all its child processes at once, as in a crash."""
        kill_server(self.folder / "data")
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the server in order and start it."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Suspend all processes of the server until `thaw`. Clients get no replies."""
        _signal_all(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the server after `freeze`."""
        _signal_all(self.pid, signal.SIGCONT)

    # Implementation.

    def _create(self) -> None:
        self.folder.chmod(0o755)
        data, log = self.folder / "data", self.folder / "log"
        make_data_folder(data)
        log.touch()
        if os.geteuid() == 0:
            for path in (self.folder, log):
                shutil.chown(path, UNPRIVILEGED, UNPRIVILEGED)
        template = os.environ.get("KESTREL_PG_TEMPLATE")
        if self._primary is not None:
            options = ("-d", self._primary.conninfo, "-R", "--checkpoint=fast", "--no-sync")
            fill([self._programs / "pg_basebackup", "-D", data, *options])
        elif template:
            fill(["cp", "--recursive", f"{template}/.", data])
        else:
            fill(initdb(self._programs, data))

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        until_s = time.monotonic() + PATIENCE_S
        is_ready: list[str | Path] = [
            *(self._programs / "pg_isready", "-q", "-h", self.folder, "-p", "5432", "-U", UNPRIVILEGED)
        ]
        while subprocess.run(is_ready, check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"PostgreSQL does not start:\n{self.log()[-2000:]}")
            # PostgreSQL does not announce that it is ready.
            time.sleep(0.02)

    def _end(self, number: int) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.send_signal(number)
            process.wait(PATIENCE_S)

    def _remove(self) -> None:
        if self._process is not None:
            self.thaw()
            # SIGQUIT stops the server at once and still releases its shared memory.
            self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)


def kill_server(data: Path) -> None:
    """Kill the server of a data folder, with all its child processes at once, as in a crash of the machine.

    Raises FileNotFoundError if no server runs there.
    """
    pidfile = (data / "postmaster.pid").read_text().splitlines()
    postmaster = int(pidfile[0])
    # After a crash another process may have the number in the file.
    if Path(f"/proc/{postmaster}/cwd").resolve() != data.resolve():
        raise FileNotFoundError(f"{data} has no running server")
    # A running postmaster would restart its children.
    _signal_all(postmaster, signal.SIGSTOP)
    processes = [*_children(postmaster), postmaster]
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until_s = time.monotonic() + PATIENCE_S
    # The next start fails while a child process exists.
    while any(map(_is_alive, processes)):
        assert time.monotonic() < until_s, "PostgreSQL does not end after a kill"
        time.sleep(0.002)
    # Release the shared memory here, because the server may not be started again.
    _, shared_memory = pidfile[6].split()
    subprocess.run(["ipcrm", "-m", shared_memory], check=False, capture_output=True)


def _signal_all(postmaster: int, number: int) -> None:
    # Signal the postmaster first, so that it does not start further children.
    os.kill(postmaster, number)
    for pid in _children(postmaster):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The second field is the program name in parentheses, which may contain spaces.
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def _is_alive(pid: int) -> bool:
    """Return True if the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    installed = programs()
    if installed is None:
        sys.exit("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    template_folder = Path(sys.argv[1]).absolute()
    make_data_folder(template_folder)
    fill(initdb(installed, template_folder))

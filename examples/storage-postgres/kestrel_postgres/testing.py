"""A private PostgreSQL for tests: a data folder of its own, reached through a unix socket, gone afterwards.

    with PrivateServer() as server:
        psycopg.connect(server.conninfo)

It is made with the programs of Debian's package `postgresql`, whose own clusters are left alone. Where the tests run as
root it runs as the user `postgres`, since PostgreSQL refuses to run as root.

    python -m kestrel_postgres.testing FOLDER

makes a template there. With KESTREL_PG_TEMPLATE=FOLDER in the environment each new server begins with a copy of it,
which takes a small part of the time that `initdb` takes.
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
"""A start that takes longer has failed."""

MEMORY: Final = "/dev/shm"
"""Where files take less time, on systems that have it."""

UNPRIVILEGED: Final = "postgres"
"""The user that Debian's package makes."""


def programs() -> Path | None:
    """The folder of the newest PostgreSQL that is installed, or None. Debian does not put it on PATH."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if found:
        return max(found, key=lambda path: int(path.parent.name))
    initdb = shutil.which("initdb")
    return None if initdb is None else Path(initdb).resolve().parent


def as_unprivileged(command: list[str | Path]) -> list[str | Path]:
    """That command, by a user that PostgreSQL puts up with, and ended with the process that starts it."""
    setpriv: list[str | Path] = ["setpriv", "--pdeathsig=QUIT"]  # even if that one is killed
    if os.geteuid() == 0:
        setpriv += [f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--init-groups"]
    return [*setpriv, *command]


def make_data_folder(folder: Path) -> None:
    """Make it, its parent being there, and belong to whom the server will run as."""
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        shutil.chown(folder, UNPRIVILEGED, UNPRIVILEGED)


def fill(command: list[str | Path]) -> None:
    """Run what fills a data folder."""
    subprocess.run(as_unprivileged(command), check=True, capture_output=True)


def initdb(found: Path, data: Path) -> list[str | Path]:
    """How the programs in that folder make a database in an empty data folder."""
    options = ("-U", UNPRIVILEGED, "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
    return [found / "initdb", "-D", data, *options]


class PrivateServer:
    """A database server; `start`, `kill` and `restart` it as often as a test likes.

    Without `folder` it makes one, which anybody may enter: the user `postgres` has to. It does without syncs, which
    only a crash of the machine would tell; `is_synced` has it make them, on a disk. With `standby_of` it follows one
    that runs. Other settings are given as in postgresql.conf.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        is_synced: bool = False,
        standby_of: PrivateServer | None = None,
        **settings: str,
    ) -> None:
        found = programs()
        if found is None:
            raise FileNotFoundError("there is no PostgreSQL here: apt-get install postgresql")
        self._programs = found
        self._given_folder = folder
        self._primary = standby_of
        self._settings = {
            "listen_addresses": "",
            "dynamic_shared_memory_type": "mmap",  # so that what a kill leaves is in its folder
            "fsync": "on" if is_synced else "off",
            "full_page_writes": "on" if is_synced else "off",
            **settings,
        }
        self._parent = MEMORY if not is_synced and os.path.isdir(MEMORY) else None
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path()
        """Where it keeps its data, its socket and its log."""

    def __enter__(self) -> PrivateServer:
        self.folder = self._given_folder or Path(tempfile.mkdtemp(prefix="kestrel-pg-", dir=self._parent))
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
        """How to reach it, as a connection string, as its superuser."""
        return f"host={self.folder} user={UNPRIVILEGED} dbname=postgres"

    @property
    def socket(self) -> Path:
        """The unix socket that it listens on."""
        return self.folder / ".s.PGSQL.5432"

    @property
    def pid(self) -> int:
        """The process that all others of it come from."""
        assert self._process is not None, "it is not running"
        return self._process.pid

    def log(self) -> str:
        """What it has said."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Run, and be ready. After a kill it recovers first."""
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
        """Stop in order, whoever is connected (`fast`)."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Have the postmaster and all that it has started die at once, as in a crash."""
        self.freeze()  # what it has started would be started anew otherwise
        children = self._children()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._end(signal.SIGKILL)
        until_s = time.monotonic() + PATIENCE_S
        while any(map(_is_alive, children)):  # the next start fails as long as one of them is there
            assert time.monotonic() < until_s, "it does not die"
            time.sleep(0.002)
        # The next start would give this back to the system; there may be none.
        _, shared_memory = (self.folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()
        subprocess.run(["ipcrm", "-m", shared_memory], check=False)

    def restart(self) -> None:
        """Stop in order and start."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Have all its processes do nothing more until `thaw`: whoever is connected hears nothing."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after `freeze`."""
        self._signal_all(signal.SIGCONT)

    # How.

    def _signal_all(self, number: int) -> None:
        os.kill(self.pid, number)  # first, so that no others come
        for pid in self._children():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _create(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
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
            time.sleep(0.02)  # it tells nobody when it is ready

    def _children(self) -> list[int]:
        parent = str(self.pid)
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                # The second field is the name of the program in parentheses, which may have spaces in it.
                if path.read_text().rpartition(")")[2].split()[1] == parent:
                    found.append(int(path.parent.name))
        return found

    def _end(self, number: int) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.send_signal(number)
            process.wait(PATIENCE_S)

    def _remove(self) -> None:
        if self._process is not None:
            self.thaw()
            self._end(signal.SIGQUIT)  # at once, and yet it gives its shared memory back
        shutil.rmtree(self.folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    """Whether that process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    installed = programs()
    if installed is None:
        sys.exit("there is no PostgreSQL here: apt-get install postgresql")
    template_folder = Path(sys.argv[1]).absolute()
    make_data_folder(template_folder)
    fill(initdb(installed, template_folder))

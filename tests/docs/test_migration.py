"""docs/migration.md: its commands print the documented output.

Journals written by Kestrel stand for Kestrel, and imitations of their servers for darner and siberite.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import deque
from pathlib import Path
from typing import Final

import pytest

import kestrel
from tests.docs.commands import make_programs
from tests.docs.markdown import code_blocks, console_blocks, section
from tests.journal import reference
from tests.journal.restarts import NOW_MS
from tests.journal.test_recorded import GOLDEN
from tests.server.running import PATIENCE_S, Processes, Server
from tests.tools.conftest import take_all
from tests.tools.other_servers import Darner, OtherServer, Siberite, serving

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "migration.md").read_text()

JOURNALS: Final = {
    "old": ("07b_old_transactions", "work"),
    "only": ("05_fanout", "only"),
    "only+z": ("05_fanout", "only+z"),
    "work": ("02a_open_transactions_crash", "work"),
}
"""The recorded case and name of each journal of the page."""

_VARYING: Final = re.compile(r"(?<=up )\S+(?=,)| +(oldest|0|([0-9.]+(ms|[smhd]))+)$", re.MULTILINE)
"""The uptime of a server, and the age of the oldest item."""


def blocks(heading: str) -> list[list[tuple[str, str]]]:
    """Return the console blocks below a heading."""
    return console_blocks(section(PAGE, heading))


class Reader:
    """Runs commands of the page, with ``/etc`` and ``/var`` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[str, str] = {f"/{name}/": f"{folder}/{name}/" for name in ("etc", "var")}
        self._environment = os.environ | {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
        }
        for name in ("bin", "etc/kestrel", "var/spool/kestrel", "var/lib/kestrel"):
            (folder / name).mkdir(parents=True)
        make_programs(folder / "bin")

    def here(self, text: str) -> str:
        """Return a text of the page with the folders and servers of the test."""
        for name, place in self._places.items():
            text = text.replace(name, place)
        return text

    def asks(self, server: Server, old: OtherServer | None = None) -> None:
        """Set the server and the old server of the page."""
        self._environment["KESTREL_SERVERS"] = f"127.0.0.1:{server.port}"
        self._places["localhost:22133"] = f"127.0.0.1:{server.port}"
        if old is not None:
            self._places["old:22133"] = old.address

    def does(self, block: list[tuple[str, str]]) -> None:
        """Run the commands, which must print the documented output."""
        for command, expected in block:
            done = subprocess.run(
                ["/bin/sh", "-c", f"exec 2>&1; {self.here(command)}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
            )
            printed = done.stdout.replace(f"kestrel {kestrel.__version__},", "kestrel 1.0.0,")
            assert _VARYING.sub("T", printed) == _VARYING.sub("T", self.here(expected)), command


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path / "reader")


def items_in(spool: Path) -> dict[str, list[bytes]]:
    """Return the items of the journals, read by an independent reader of Kestrel's format."""
    files = {path.name: path.read_bytes() for path in spool.iterdir()}
    assert all(reference.read(contents).problem == "" for contents in files.values())
    items = {name: [item[0] for item in reference.items_after(each, now_ms=NOW_MS)] for name, each in files.items()}
    return {name: of_queue for name, of_queue in items.items() if of_queue}


def test_all_console_blocks_are_run() -> None:
    run = ("The configuration", "The journals", "Going back", "From darner", "From siberite")
    assert sum(len(blocks(heading)) for heading in run) == PAGE.count("```console\n")


def test_kestrel_is_replaced_and_restored(reader: Reader, processes: Processes) -> None:
    spool = reader.folder / "var" / "spool" / "kestrel"
    for name, (case, recorded) in JOURNALS.items():
        shutil.copy(GOLDEN / case / "journal" / recorded, spool / name)
    before = items_in(spool)
    (configuration,) = code_blocks(PAGE, "scala")
    (reader.folder / "production.scala").write_text(reader.here(configuration))
    (made,) = blocks("The configuration")
    reader.does(made)
    looked_at, served = blocks("The journals")
    reader.does(looked_at)
    config = (reader.folder / "etc" / "kestrel" / "production.toml").read_text()
    assert config.startswith("# By kestrel-convert-config") and "\n# line 18: maxItems" in config
    server = processes.serve(config)
    reader.asks(server)
    reader.does(served)
    with server.connect() as client:
        item = client.get(b"work/open")
    server.stop()
    (back,) = blocks("Going back")
    reader.does(back)
    assert items_in(spool) == before
    assert before["work"][0] == item


def test_darner_is_drained(reader: Reader, processes: Processes) -> None:
    darner = Darner()
    darner.fill(b"jobs", b"1", b"2", b"3")
    darner.fill(b"mail", b"\0", b"x" * 5000)
    darner.fill(b"mail.high", b"first")
    server = processes.serve('queuePath = "queues"\n')
    with serving(darner):
        reader.asks(server, darner)
        (drained,) = blocks("From darner")
        reader.does(drained)
    found = [take_all(server, name) for name in (b"jobs", b"mail", b"mail_high")]
    assert found == [[b"1", b"2", b"3"], [b"\0", b"x" * 5000], [b"first"]]


def test_siberite_is_drained_and_its_cursors_become_children(reader: Reader, processes: Processes) -> None:
    siberite = Siberite()
    siberite.fill(b"jobs", b"1", b"2", b"3")
    siberite.fill(b"events", b"b", b"c")
    siberite.cursors[b"events.audit"] = deque([b"a", b"b", b"c"])
    server = processes.serve('queuePath = "queues"\n')
    with serving(siberite):
        reader.asks(server, siberite)
        (drained,) = blocks("From siberite")
        reader.does(drained)
    with server.connect() as client:
        client.put(b"events", b"d")
    found = [take_all(server, name) for name in (b"jobs", b"events", b"events+audit", b"events_audit")]
    assert found == [[b"1", b"2", b"3"], [b"b", b"c", b"d"], [b"a", b"b", b"c", b"d"], []]

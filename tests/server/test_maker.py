"""The process is prepared before its server is made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
from twisted.internet.task import Clock

from kestrel.server import maker
from kestrel.server.startup_errors import EX_CONFIG, CannotServe
from tests.child import PATIENCE_S


def test_open_file_limit_is_raised_before_server_is_made(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    def service(*args: object, **options: object) -> None:
        done.append("server made")
        raise CannotServe("enough was seen", EX_CONFIG)

    monkeypatch.setattr(maker, "raise_file_limit", lambda: done.append("limit raised"))
    monkeypatch.setattr(maker, "KestrelService", service)
    with pytest.raises(SystemExit) as ended:
        maker.Daemon(Clock(), maker.Options())
    assert ended.value.code == EX_CONFIG
    assert done == ["limit raised", "server made"]
    assert capfd.readouterr().err == "kestrel: enough was seen\n"


PAGE_FAULTS = """
import resource
from kestrel.server.process import keep_freed_memory

def faults_of_twenty_items():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        bytearray(4 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
faults_of_twenty_items()
print(faults_of_twenty_items())
"""


def page_faults(environment: Mapping[str, str]) -> int:
    """Return the page faults of a program that uses and frees 4 MiB repeatedly."""
    program = [sys.executable, "-c", PAGE_FAULTS]
    environment = {**os.environ, **environment}
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    return int(ended.stdout)


def test_freed_memory_is_reused_unless_the_environment_sets_its_limit() -> None:
    assert page_faults({}) < 20
    assert page_faults({"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}) >= 20


COLLECTIONS = """
import gc
from twisted.application.service import Service
from twisted.internet import reactor
from kestrel.server import maker

def full_collections():
    before = gc.get_stats()[2]["collections"]
    made = [[] for _ in range(1_000_000)]
    return gc.get_stats()[2]["collections"] - before

class Queues(Service):
    def __init__(self, reactor, config, *, loaded, **options):
        self.loaded = loaded

    def startService(self):
        print(full_collections())
        self.loaded()

maker.KestrelService = Queues
maker.Daemon(reactor, maker.Options()).startService()
print(full_collections())
"""


def test_load_makes_no_full_collections() -> None:
    program = [sys.executable, "-c", COLLECTIONS]
    ended = subprocess.run(program, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    loading, serving = ended.stdout.split()
    assert loading == "0" and int(serving) > 0

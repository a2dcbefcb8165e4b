"""The tool that the fleet is compared with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kestrel.tools import qpack as tool
from tests.spark.fleet.folders import NOW_MS, Qpack, Said


@pytest.fixture
def qpack(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Qpack:
    """Run kestrel-qpack --json in this process, at `NOW_MS`. Return its exit status, objects and remarks."""
    monkeypatch.setattr("kestrel.tools.qpack.time.time", lambda: NOW_MS / 1000)

    def run_here(*arguments: str | Path) -> Said:
        status = tool.main(["--json", *map(str, arguments)])
        out, said = capsys.readouterr()
        sentences = [line.removeprefix("kestrel-qpack: ") for line in said.splitlines()]
        return status, [json.loads(line) for line in out.splitlines()], sentences

    return run_here

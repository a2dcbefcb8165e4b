"""The package in examples/storage-postgres passes the tests that it ships, as its author would run them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.child import LONG_S

PACKAGE = Path(__file__).parents[2] / "examples" / "storage-postgres"


@pytest.mark.needs("postgresql")
@pytest.mark.database
@pytest.mark.parametrize("module", sorted(path.name for path in PACKAGE.glob("tests/test_*.py")))
def test_postgresql_storage_passes_its_own_tests(tmp_path: Path, module: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tests'}"]
    command.append(f"tests/{module}")
    ended = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr

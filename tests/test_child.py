"""No program goes on behind the test that has started it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import child
from tests.child import Child

FOR_EVER = [sys.executable, "-c", "import threading; threading.Event().wait()"]


def test_what_ends_by_itself_is_waited_for() -> None:
    with Child([sys.executable, "-c", "raise SystemExit(3)"]) as program:
        pass
    assert program.returncode == 3


def test_a_failure_ends_what_would_not_end() -> None:
    with pytest.raises(ZeroDivisionError), Child(FOR_EVER) as program:
        1 / 0  # noqa: B018
    assert program.returncode == -9


def test_what_does_not_end_is_a_failure_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "PATIENCE_S", 0.0)
    with pytest.raises(subprocess.TimeoutExpired), Child(FOR_EVER) as program:
        pass
    assert program.returncode == -9

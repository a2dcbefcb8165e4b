"""Child processes of tests end with them, and every wait has a time limit."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import child
from tests.child import Child, join
from tests.server.running import ROOT, eventually

SLEEP = [sys.executable, "-c", "import threading; threading.Event().wait()"]

START_CHILD = """
import os, subprocess, sys
from tests.child import Child
program = Child(["sh", "-c", 'echo; exec "$@"', "sh", *sys.argv[1:]], stdout=subprocess.PIPE)
program.read_line()
print(program.pid, flush=True)
os._exit(0)
"""


def test_end_of_the_process_is_awaited() -> None:
    with Child([sys.executable, "-c", "raise SystemExit(3)"]) as program:
        pass
    assert program.returncode == 3


def test_failed_test_kills_the_process() -> None:
    with pytest.raises(ZeroDivisionError), Child(SLEEP) as program:
        1 / 0  # noqa: B018
    assert program.returncode == -9


def test_process_that_does_not_end_is_killed_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "PATIENCE_S", 0.0)
    with pytest.raises(subprocess.TimeoutExpired), Child(SLEEP) as program:
        pass
    assert program.returncode == -9


def test_missing_line_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError), Child[bytes](["true"], stdout=subprocess.PIPE) as program:
        program.read_line()
    with Child[str](["echo", "a"], stdout=subprocess.PIPE, text=True) as speaking:
        assert speaking.read_line() == "a\n"
    monkeypatch.setattr(child, "PATIENCE_S", 0.0)
    with pytest.raises(AssertionError), Child[bytes](SLEEP, stdout=subprocess.PIPE) as silent:
        silent.read_line()
    assert silent.returncode == -9


def test_thread_that_does_not_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, daemon=True)
    thread.start()
    monkeypatch.setattr(child, "PATIENCE_S", 0.0)
    with pytest.raises(AssertionError):
        join(thread)
    may_end.set()


@pytest.mark.needs("setpriv")
def test_process_that_exits_without_cleanup_kills_its_children() -> None:
    command = [sys.executable, "-c", START_CHILD, *SLEEP]
    with Child[bytes](command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE) as program:
        pid = int(program.read_line())
    try:
        eventually(lambda: not is_running(pid), "the child has ended")
    finally:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Return whether a process runs. A zombie, whose parent has not read its status, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# Rules for all tests.


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of functions of `subprocess` with their names."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="subprocess"), attr=name)):
                yield name, node


def context_calls(node: ast.With) -> Iterator[ast.Call]:
    for item in node.items:
        if isinstance(item.context_expr, ast.Call):
            yield item.context_expr


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Return the syntax trees of the test modules that use `subprocess`."""
    sources = {str(path.relative_to(ROOT)): path.read_bytes() for path in sorted((ROOT / "tests").rglob("*.py"))}
    return {name: ast.parse(source) for name, source in sources.items() if b"subprocess" in source}


def test_no_test_uses_popen_as_a_context_manager(trees: dict[str, ast.Module]) -> None:
    found = [
        f"{name}:{call.lineno}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for call in context_calls(node)
        if (call.func.attr if isinstance(call.func, ast.Attribute) else "") == "Popen"
    ]
    assert found == []


def test_every_run_of_a_program_has_a_timeout(trees: dict[str, ast.Module]) -> None:
    found = [
        f"{name}:{call.lineno}"
        for name, tree in trees.items()
        for function, call in calls(tree)
        if function in {"run", "call", "check_call", "check_output"}
        and "timeout" not in {keyword.arg for keyword in call.keywords}
    ]
    assert found == []

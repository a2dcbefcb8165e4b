"""No program goes on behind the test that has started it, and none is waited for for ever."""

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

FOR_EVER = [sys.executable, "-c", "import threading; threading.Event().wait()"]

STARTS_ONE = """
import os, subprocess, sys
from tests.child import Child
program = Child(["sh", "-c", 'echo; exec "$@"', "sh", *sys.argv[1:]], stdout=subprocess.PIPE)
program.read_line()
print(program.pid, flush=True)
os._exit(0)
"""


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


def test_what_says_no_line_or_ends_without_one_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError), Child[bytes](["true"], stdout=subprocess.PIPE) as program:
        program.read_line()
    with Child[str](["echo", "a"], stdout=subprocess.PIPE, text=True) as speaking:
        assert speaking.read_line() == "a\n"
    monkeypatch.setattr(child, "PATIENCE_S", 0.0)
    with pytest.raises(AssertionError), Child[bytes](FOR_EVER, stdout=subprocess.PIPE) as silent:
        silent.read_line()
    assert silent.returncode == -9


def test_a_thread_that_does_not_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, daemon=True)
    thread.start()
    monkeypatch.setattr(child, "PATIENCE_S", 0.0)
    with pytest.raises(AssertionError):
        join(thread)
    may_end.set()


@pytest.mark.needs("setpriv")
def test_a_process_that_ends_without_a_word_takes_what_it_has_started_with_it() -> None:
    command = [sys.executable, "-c", STARTS_ONE, *FOR_EVER]
    with Child[bytes](command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE) as program:
        pid = int(program.read_line())
    try:
        eventually(lambda: not is_running(pid), "what it has started has ended")
    finally:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Whether there is that process; one that has ended may have nobody who asks for its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# What keeps it so.


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Each call of something of `subprocess`, by its name."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="subprocess"), attr=name)):
                yield name, node


def used(node: ast.With) -> Iterator[ast.Call]:
    for item in node.items:
        if isinstance(item.context_expr, ast.Call):
            yield item.context_expr


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Of all modules of the tests that start programs."""
    sources = {str(path.relative_to(ROOT)): path.read_bytes() for path in sorted((ROOT / "tests").rglob("*.py"))}
    return {name: ast.parse(source) for name, source in sources.items() if b"subprocess" in source}


def test_no_test_waits_for_ever_for_a_program_as_the_with_of_popen_does(trees: dict[str, ast.Module]) -> None:
    found = [
        f"{name}:{call.lineno}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for call in used(node)
        if (call.func.attr if isinstance(call.func, ast.Attribute) else "") == "Popen"
    ]
    assert found == []


def test_every_program_that_is_run_to_its_end_has_so_much_time(trees: dict[str, ast.Module]) -> None:
    found = [
        f"{name}:{call.lineno}"
        for name, tree in trees.items()
        for function, call in calls(tree)
        if function in {"run", "call", "check_call", "check_output"}
        and "timeout" not in {keyword.arg for keyword in call.keywords}
    ]
    assert found == []

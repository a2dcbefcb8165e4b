"""The CI script `.ci/run`. A shell reports such errors only when it reaches them."""

import re
import shlex
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / ".ci" / "run"


def test_timeout_command_is_valid() -> None:
    bound = re.search(r"exec (timeout .*) bash \"\$0\"", SCRIPT.read_text())
    assert bound is not None
    ran = subprocess.run([*shlex.split(bound[1]), "true"], capture_output=True, text=True, timeout=10)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_syntax_is_valid() -> None:
    ran = subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True, text=True, timeout=10)
    assert (ran.returncode, ran.stderr) == (0, "")

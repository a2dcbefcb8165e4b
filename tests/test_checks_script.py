"""The script of every check (`.ci/run`) starts: a shell finds such faults only when it runs into them."""

import re
import shlex
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / ".ci" / "run"


def test_its_bound_is_one_that_timeout_takes() -> None:
    bound = re.search(r"exec (timeout .*) bash \"\$0\"", SCRIPT.read_text())
    assert bound is not None
    ran = subprocess.run([*shlex.split(bound[1]), "true"], capture_output=True, text=True, timeout=10)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_shell_can_read_it() -> None:
    ran = subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True, text=True, timeout=10)
    assert (ran.returncode, ran.stderr) == (0, "")

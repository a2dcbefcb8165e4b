"""Runs torture programs with the code of a commit that has known faults, and checks that they find them.

    python -m tests.torture.known_faults

The package comes from the commit, the torture programs from this checkout. Each fault was in the code of that commit
and is fixed today, so each run must fail. The program needs the history of the repository.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.child import PATIENCE_S
from tests.server.running import ROOT
from tests.torture.check_report import CheckReport

FAULTY_COMMIT: Final = "afe3961"
"""The last commit with the faults below."""
PACKAGES: Final = ("kestrel", "twisted", "pyspark_kestrel")
TIMEOUT_S: Final = 15 * PATIENCE_S


class Fault(NamedTuple):
    """A fault, the run that finds it, and a pattern of its line in the output."""

    name: str
    arguments: str
    pattern: str


def _matrix(scene: str, files: str) -> tuple[str, str]:
    """Return the run of a scene, and a pattern of the counts of these files with a number of faults other than 0."""
    return f"damage_matrix --scene {scene}", rf"^  {files} .* [1-9][0-9,]*$"


FAULTS: Final = (
    Fault("damage in one journal file costs items of others", *_matrix("three-file-journal", r"work\.\d+")),
    Fault(
        "damage in one journal file costs items of others",
        "hazards --seed 1 --storage journal --hazard files",
        "FAILED  journal: .* of another",
    ),
    Fault("a flipped bit in a reader file erases a queue", *_matrix("scroll-with-two-readers", r"news\.read\.\S+")),
    Fault("a flipped bit in a writer file hides others", *_matrix("scroll-with-two-readers", r"news\.\d+")),
    Fault(
        "a flipped bit in a reader or writer file loses items",
        "hazards --seed 1 --storage scroll --hazard files",
        "FAILED  scroll: .* of another",
    ),
    Fault(
        "the names of deleted queues remain",
        "hazards --seed 1 --storage scroll --hazard names",
        "FAILED  .* leave no file",
    ),
    Fault(
        "no get or delete without free inodes",
        "hazards --seed 1 --storage journal --hazard inodes",
        "FAILED  .* peek, get, open",
    ),
    Fault(
        "unread replies use unbounded memory",
        "hazards --seed 1 --storage journal --hazard replies",
        "FAILED  .* read no reply",
    ),
)


def check_out(commit: str, folder: Path) -> None:
    """Write the package of that commit and the current tests to a folder. Exit if git lacks the commit."""
    archive = subprocess.run(
        ["git", "archive", commit, *PACKAGES], cwd=ROOT, check=False, capture_output=True, timeout=PATIENCE_S
    )
    if archive.returncode:
        reason = archive.stderr.decode(errors="replace").strip()
        sys.exit(f"cannot read commit {commit}: {reason}. In a shallow clone, run `git fetch --unshallow` first.")
    subprocess.run(["tar", "--extract"], cwd=folder, input=archive.stdout, check=True, timeout=PATIENCE_S)
    for name in ("tests", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def torture(commit: str) -> int:
    """Run the torture programs with that commit and print a report. Return the number of faults not found."""
    report = CheckReport()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        check_out(commit, folder)
        for fault in FAULTS:
            began = time.monotonic()
            run = subprocess.run(
                [sys.executable, "-m", *f"tests.torture.{fault.arguments}".split()],
                cwd=folder,
                env=os.environ | {"KESTREL_PURE": "1", "PYTHONPATH": scratch},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            is_found = run.returncode == 1 and re.search(fault.pattern, run.stdout, re.MULTILINE) is not None
            what = f"{fault.name}: found by {fault.arguments}, {time.monotonic() - began:.1f} s"
            report.check(is_found, what, [run.stdout[-1500:] + run.stderr[-1500:]])
    return report.finish()


def main() -> int:
    """Run from the command line. Return the exit status."""
    parser = argparse.ArgumentParser(description="Run torture programs with the code of a commit with known faults.")
    parser.add_argument("--commit", default=FAULTY_COMMIT)
    return 1 if torture(parser.parse_args().commit) else 0


if __name__ == "__main__":
    sys.exit(main())

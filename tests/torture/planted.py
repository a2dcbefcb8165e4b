"""Runs the tortures over the code of a commit with known faults, and tells which run finds which fault, and when.

    python -m tests.torture.planted

The package comes from the commit, the tortures from this checkout. Each fault was in the code of that commit and is
mended today, so each run must fail there. It needs the history of the repository.
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
from tests.torture.kill_restart import Ledger

BEFORE: Final = "afe3961"
"""The last commit with the faults below."""
PACKAGES: Final = ("kestrel", "twisted", "pyspark_kestrel")
LONGEST_S: Final = 15 * PATIENCE_S


class Fault(NamedTuple):
    """A fault, the run that finds it, and the line of the output that tells of it."""

    name: str
    arguments: str
    told: str


def _matrix(scene: str, files: str) -> tuple[str, str]:
    """Return the run over a scene, and the line of the counts of these files, the last of which is not 0."""
    return f"damage_matrix --scene {scene}", rf"^  {files} .* [1-9][0-9,]*$"


FAULTS: Final = (
    Fault("damage in one journal file costs items of others", *_matrix("three-file-journal", r"work\.\d+")),
    Fault("the same", "hazards --seed 1 --storage journal --hazard files", "FAILED  journal: .* of another"),
    Fault("a flipped bit in a reader file erases a queue", *_matrix("scroll-with-two-readers", r"news\.read\.\S+")),
    Fault("a flipped bit in a writer file hides others", *_matrix("scroll-with-two-readers", r"news\.\d+")),
    Fault("either of them", "hazards --seed 1 --storage scroll --hazard files", "FAILED  scroll: .* of another"),
    Fault(
        "the names of deleted queues stay",
        "hazards --seed 1 --storage scroll --hazard names",
        "FAILED  .* leave no file",
    ),
    Fault(
        "no get or delete without inodes",
        "hazards --seed 1 --storage journal --hazard inodes",
        "FAILED  .* peek, get, open",
    ),
    Fault(
        "unread replies take unbounded memory",
        "hazards --seed 1 --storage journal --hazard replies",
        "FAILED  .* read no reply",
    ),
)


def check_out(commit: str, folder: Path) -> None:
    """Write the package as of that commit, and the tests of today, to a folder. Exit if git lacks the commit."""
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
    """Run each torture over that commit and print the ledger. Returns how many faults were not found."""
    ledger = Ledger()
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
                timeout=LONGEST_S,
                check=False,
            )
            is_found = run.returncode == 1 and re.search(fault.told, run.stdout, re.MULTILINE) is not None
            ledger.check(is_found, f"{fault.name}: found by {fault.arguments}, {time.monotonic() - began:.1f} s")
            if not is_found:
                print(run.stdout[-1500:] + run.stderr[-1500:])
    ledger.close()
    return ledger.failed


def main() -> int:
    """Run from the command line. The exit status says whether every fault was found."""
    parser = argparse.ArgumentParser(description="Run the tortures over the code of a commit with known faults.")
    parser.add_argument("--commit", default=BEFORE)
    return 1 if torture(parser.parse_args().commit) else 0


if __name__ == "__main__":
    sys.exit(main())

"""kestrel-qdump on a folder whose files have any bytes."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

from kestrel.tools.qdump import main
from kestrel.tools.tool_runner import EX_FOUND, EX_OK
from tests.fuzz import journal_inputs, scroll_inputs
from tests.fuzz.choices import Choices
from tests.fuzz.scratch_folder import scratch_folder
from tests.fuzz.target import Target

FORMS = ((), ("-q",), ("-d",), ("-A",), ("-Q",), ("--json",), ("--json", "-d"), ("--json", "-q"))

NAMES = ("work", "work.1700000000000", "work.read.x", "work.1700000000000.pack")


def check(data: bytes) -> None:
    """Check that the exit status is that of success or damage, and that no file changes."""
    choices = Choices(data)
    form, names, takes_one = choose(choices)
    contents = choices.rest()
    with scratch_folder() as folder:
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(contents)
        path = folder / names[0]
        arguments = [*form, "--this-file", str(path)] if takes_one else [*form, str(folder)]
        with redirect_stderr(io.StringIO()), redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")) as output:
            status = main(arguments)
            output.flush()
        assert all((folder / name).read_bytes() == contents for name in names)
    assert status in (EX_OK, EX_FOUND)
    if "--json" in form:
        for line in output.buffer.getvalue().splitlines():
            json.loads(line)
    assert sys.stdout is not output


def choose(choices: Choices) -> tuple[tuple[str, ...], list[str], bool]:
    """Return the options, the names of the files, and whether one file is dumped instead of the folder."""
    form = FORMS[choices.number(len(FORMS))]
    chosen = choices.number(1 << len(NAMES)) or 1
    return form, [name for index, name in enumerate(NAMES) if chosen >> index & 1], bool(choices.number(2))


TARGET = Target(check, lambda: (*journal_inputs.WORDS, *scroll_inputs.WORDS))

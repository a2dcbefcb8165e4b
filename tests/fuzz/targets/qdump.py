"""kestrel-qdump over a folder whose files have any bytes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout

from kestrel.tools.qdump.command import main
from kestrel.tools.tool_runner import EX_FOUND, EX_OK
from tests.fuzz import journals, scrolls
from tests.fuzz.fed import Fed, fed
from tests.fuzz.folders import a_folder
from tests.fuzz.target import Target

FORMS = ((), ("-q",), ("-d",), ("-A",), ("-Q",), ("--json",), ("--json", "-d"), ("--json", "-q"))

NAMES = ("work", "work.1700000000000", "work.read.x", "work.1700000000000.pack")


def check(data: bytes) -> None:
    """Its exit status is one of success or damage, and it changes no byte."""
    choices = Fed(data)
    form, names, takes_one = choose(choices)
    contents = choices.rest()
    with a_folder() as folder:
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


def choose(choices: Fed) -> tuple[tuple[str, ...], list[str], bool]:
    """How it is shown, which files there are, and whether one of them is asked for or the folder."""
    form = FORMS[choices.number(len(FORMS))]
    chosen = choices.number(1 << len(NAMES)) or 1
    return form, [name for place, name in enumerate(NAMES) if chosen >> place & 1], bool(choices.number(2))


def seeds() -> Mapping[str, bytes]:
    found = {}
    for place, (name, contents) in enumerate(journals.seeds().items()):
        found[name] = fed(contents, place, 1, place // 2)
    for place, (name, contents) in enumerate(scrolls.recorded("writer").items()):
        found[f"writer-{name}"] = fed(contents, place, 2, place // 2)
    for place, (name, contents) in enumerate(scrolls.recorded("reader").items()):
        found[f"reader-{name}"] = fed(contents, place, 4, place // 2)
    return found


TARGET = Target(check, seeds, lambda: (*journals.WORDS, *scrolls.WORDS))

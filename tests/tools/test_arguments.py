"""Common arguments of the tools."""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from kestrel.client.arguments import LONGEST_TIMEOUT_S
from kestrel.load.cli import main as load
from kestrel.tools.arguments import duration_ms, wire_duration_s
from kestrel.tools.cli.command import main as cli
from kestrel.tools.convert.command import main as convert
from kestrel.tools.convert_config.command import main as convert_config
from kestrel.tools.qdump import main as qdump
from kestrel.tools.qpack import main as qpack

Main = Callable[[list[str]], int]

EMPTY = "the name of a file or folder cannot be empty"
NO_KIND = "names no kind and folder"


@pytest.mark.parametrize(
    ("main", "arguments", "says"),
    [
        (qpack, [""], EMPTY),
        (qpack, ["--verify", ""], EMPTY),
        (qdump, [""], EMPTY),
        (convert_config, [""], EMPTY),
        (convert_config, ["-o", "", "production.scala"], EMPTY),
        (cli, ["--tls", "--ca", "", "stats"], EMPTY),
        (load, ["flood", "--tls", "--cert", ""], EMPTY),
        (convert, ["journal:", "scroll:new"], NO_KIND),
        (convert, ["journal:old", "scroll:"], NO_KIND),
        (convert, ["", "scroll:new"], NO_KIND),
    ],
)
def test_empty_name_of_a_file_or_folder_is_refused(
    main: Main, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    out, said = capsys.readouterr()
    assert (end.value.code, out, says in said) == (2, "", True)


def test_longest_duration_does_not_overflow() -> None:
    time.gmtime(time.time() + 2 * duration_ms("36500d") / 1000)
    with pytest.raises(ArgumentTypeError, match="36500 days"):
        duration_ms("36500d1ms")


def test_longest_wire_duration_fits_31_bits() -> None:
    assert wire_duration_s(str(LONGEST_TIMEOUT_S)) * 1000 < 2**31
    with pytest.raises(ArgumentTypeError, match="24 days"):
        wire_duration_s("2147483.001")

"""What the tools' command lines have in common."""

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
from kestrel.tools.qdump.command import main as qdump
from kestrel.tools.qpack.command import main as qpack

Main = Callable[[list[str]], int]


def refused(main: Main, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Why the command line makes no sense, in the tool's words."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    out, said = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    return said


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (qpack, [""]),
        (qpack, ["--verify", ""]),
        (qdump, [""]),
        (convert_config, [""]),
        (convert_config, ["-o", "", "production.scala"]),
        (cli, ["--tls", "--ca", "", "stats"]),
        (load, ["flood", "--tls", "--cert", ""]),
    ],
)
def test_no_name_is_no_folder_and_no_file(
    main: Main, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "the name of a file or folder cannot be empty" in refused(main, arguments, capsys)


def test_no_name_is_no_folder_to_convert(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["journal:", "scroll:new"], ["journal:old", "scroll:"], ["", "scroll:new"]):
        assert "names no kind and folder" in refused(convert, arguments, capsys)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("1.5", 1500), (".5", 500), ("100ms", 100), ("1m30s", 90_000), ("2.hours", 7_200_000)],
)
def test_a_duration_is_taken_as_its_complaint_says_to_write_it(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


def test_the_longest_duration_overflows_nothing() -> None:
    time.gmtime(time.time() + 2 * duration_ms("36500d") / 1000)
    with pytest.raises(ArgumentTypeError, match="36500 days"):
        duration_ms("36500d1ms")


def test_the_longest_duration_that_is_sent_fits_31_bits_of_milliseconds() -> None:
    assert wire_duration_s(str(LONGEST_TIMEOUT_S)) * 1000 < 2**31
    with pytest.raises(ArgumentTypeError, match="24 days"):
        wire_duration_s("2147483.001")

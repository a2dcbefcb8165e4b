"""What the tools' command lines have in common."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kestrel.load.cli import main as load
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
    assert "no file and no folder has an empty name" in refused(main, arguments, capsys)


def test_no_name_is_no_folder_to_convert(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["journal:", "scroll:new"], ["journal:old", "scroll:"], ["", "scroll:new"]):
        assert "is no folder of a kind" in refused(convert, arguments, capsys)

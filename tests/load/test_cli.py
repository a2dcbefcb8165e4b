"""The command line of kestrel-load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kestrel
from kestrel.load.cli import main, make_load_parser, options

TOOLS = ("flood", "many-clients", "put-many", "packing", "leaky-reader")


def test_command_alone_lists_the_tools(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.findall(r"^    ([a-z-]+)\b", said.err, re.MULTILINE) == list(TOOLS)


@pytest.mark.parametrize("tool", TOOLS)
def test_help_and_page_have_the_options_of_each_tool(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
    section = page.partition("## kestrel-load\n")[2].partition("\n## ")[0]
    with pytest.raises(SystemExit) as ended:
        main([tool, "--help"])
    assert ended.value.code == 0
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert options >= {"--server", "--protocol", "--tls", "--queue", "--items", "--json"}
    of_tls = {"--help", "--ca", "--cert", "--key", "--server-name"}
    assert f"| `{tool}` |" in section
    assert [option for option in sorted(options - of_tls) if f"`{option}" not in section] == []


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"kestrel-load {kestrel.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "invalid choice: 'nosuch'"),
        (["flood", "--items", "0"], "not a number from 1 to 100,000,000"),
        (["flood", "--items", "100000000", "--prefill", "1"], "items are too many"),
        (["flood", "--bytes", "23"], "not a number from 24 to"),
        (["flood", "--bytes", "100..50"], "write the smaller size first"),
        (["flood", "--queue", "a/b"], "queue name"),
        (["put-many", "--queue", "q" * 200, "--queues", "2"], "cannot be longer than 200 bytes"),
        (["flood", "--server", "one,"], "a load is put on one server"),
        (["flood", "--server", ""], "is no address"),
        (["flood", "--server", "one,two"], "a load is put on one server"),
        (["flood", "--server", "zk://zk1/services/kestrel"], "a load is put on one server"),
        (["flood", "--server", "host:x"], "is no address"),
        (["flood", "--protocol", "http"], "invalid choice: 'http'"),
        (["flood", "--ca", "ca.pem"], "need --tls"),
        (["flood", "--clients", "50001"], "not a number from 1 to 50,000"),
        (["leaky-reader", "--leak", "1"], "is not a share from 0 to 0.9"),
        (["leaky-reader", "--hold", "99999999999999"], "is more than 36500 days"),
        (["leaky-reader", "--hold", "25d"], "is more than 2147483 seconds (24 days), the maximum"),
        (["packing", "--cycles", "0"], "not a number from 1 to 1,000"),
        (["packing", "--prefill", "1"], "unrecognized arguments"),
    ],
)
def test_invalid_command_line_has_status_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_several_servers_in_the_environment_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for servers in ("one two", "one,two", "zk://zk1,zk2/services/kestrel"):
        monkeypatch.setenv("KESTREL_SERVERS", servers)
        with pytest.raises(SystemExit):
            main(["flood"])
        assert "a load is put on one server" in capsys.readouterr().err


@pytest.mark.parametrize("servers", ["127.0.0.1:1,", " 127.0.0.1:1 ", ", 127.0.0.1:1"])
def test_single_server_in_the_environment_is_used(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KESTREL_SERVERS", servers)
    assert options(make_load_parser().parse_args(["flood"])).address == ("127.0.0.1", 1)

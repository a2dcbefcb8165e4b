"""The tables of docs/worker.md are true. Its programs are run by test_client.py."""

from __future__ import annotations

import inspect
import re
from typing import Final

import pytest

from kestrel.worker import Worker, cli
from kestrel.worker.twisted_worker import TwistedWorker
from tests.server.running import ROOT

PAGE: Final = (ROOT / "docs" / "worker.md").read_text()


def test_page_and_help_have_the_same_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    helps = capsys.readouterr().out.partition("examples:")[0]
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", helps)) - {"--help", "--version", "--print-completion"}
    (table,) = re.findall(r"^\| option \|.*\n(?:\|.*\n)+", PAGE, re.MULTILINE)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", table)) == known


def test_defaults_of_the_options_are_those_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    helps = " ".join(capsys.readouterr().out.split())
    for option, default in re.findall(r"^\| `(--[a-z-]+) [A-Z]+` \| (\w+) \|", PAGE, re.MULTILINE):
        if default not in {"required", "none"}:
            assert re.search(rf" {option} .*?\(default: {default}\)", helps), option


def test_both_workers_have_the_arguments_of_the_page() -> None:
    (sentence,) = re.findall(r"The options are those of the command, as arguments: (.*?)\.\n", PAGE, re.DOTALL)
    named = set(re.findall(r"`(\w+)`", sentence)) | {"concurrency"}
    workers = [inspect.signature(worker).parameters for worker in (Worker, TwistedWorker)]
    assert all(named <= set(parameters) for parameters in workers)
    for name in named:
        assert len({parameters[name].default for parameters in workers}) == 1, name

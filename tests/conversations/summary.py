"""Prints after a test run how many recorded conversations were played, and which were not, and why.

`tests/conftest.py` loads it, because the process that prints the summary may not run these tests.
"""

import re
from collections.abc import Iterator

import pytest

from tests.conversations.playing import recorded_conversations
from tests.conversations.tables import DIFFERENCES, QUEUES_WITH_OTHER_STATS
from tests.server.storages import NAMES
from tests.storage.backends import BACKENDS

PLAYED = re.compile(r"test_conversations\.py::test_a_(timed_)?conversation_goes_as_it_was_recorded\[")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The numbers of played conversations, and the others."""
    reports = [report for key in ("passed", "failed") for report in terminalreporter.getreports(key)]
    played = sum(PLAYED.search(report.nodeid) is not None and report.when == "call" for report in reports)
    if played:
        terminalreporter.section("recorded conversations")
        for line in summary(played):
            terminalreporter.write_line(line)


def summary(played: int) -> Iterator[str]:
    """Return the lines of the summary."""
    conversations = recorded_conversations().values()
    timed = sum(conversation.is_timed for conversation in conversations)
    number = (len(conversations) - timed) * len(NAMES) + timed * len(BACKENDS)
    yield f"{played} of {number} played, over {', '.join(NAMES)}, and where time goes by over {', '.join(BACKENDS)}"
    yield f"in {len(DIFFERENCES)} of {len(conversations)} we differ on purpose"
    for queue, reason in QUEUES_WITH_OTHER_STATS.items():
        yield f"left out: the lines of stats about {queue} ({reason})"

"""Lines of the log: nothing that comes from outside forges one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO

import pytest
from twisted.logger import FileLogObserver, Logger, globalLogPublisher

from kestrel.config.load import loads
from kestrel.server.logs import json_line, text_line
from kestrel.session.session_context import RefusalLog
from kestrel.testing.server import MemoryServer
from tests.admin.browsing import Admin

FORGED = "\r\n2026-11-24 [kestrel#info] forged \x00\x08\x1b[2J\x7f\x80\x85\x9b2J\x9f\u2028\u2029end"
CONTROLS = {chr(number) for number in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


class Written(StringIO):
    """What was written to the log."""

    def lines(self) -> list[str]:
        """Return the lines, each without its end, after checking that they contain no control character."""
        lines = self.getvalue().removesuffix("\n").split("\n")
        assert not CONTROLS & set("".join(line.removeprefix("\x1e") for line in lines))
        return lines


@pytest.fixture(params=[text_line, json_line])
def written(request: pytest.FixtureRequest) -> Iterator[Written]:
    written = Written()
    observer = FileLogObserver(written, request.param)
    globalLogPublisher.addObserver(observer)
    yield written
    globalLogPublisher.removeObserver(observer)


def test_host_header_forges_no_line(written: Written) -> None:
    for host in ("evil\x85forged", "evil\x9b2Jforged", "evil\xc2\x85forged", "evil\x7fforged", "evil\xe2\x80\xa8x"):
        admin = Admin()
        admin.get("/ping", {"Host": host})
    assert written.lines()


def test_queue_name_forges_no_line(written: Written) -> None:
    server = MemoryServer(config=loads("[default]\nwhiteListClientIdForEnqueue = []\nenableTrace = true\n"))
    for name in (b"a\x85b", b"a\xc2\x85b", b"a\x9bb", b"a\xe2\x80\xa8b"):
        assert server.connect().ask(b"set %b 0 0 1\r\nx\r\n" % name).startswith(b"SERVER_ERROR")
    assert len(written.lines()) == 4


@pytest.mark.parametrize("identity", [FORGED.encode(), b"CN=" + FORGED.encode(), b"CN=\x85\xff\r\n"])
def test_client_id_and_certificate_subject_forge_no_line(written: Written, identity: bytes) -> None:
    RefusalLog(lambda: 0.0).log("peer", identity, "no")
    assert len(written.lines()) == 1


def test_every_value_of_an_event_is_escaped(written: Written) -> None:
    Logger("kestrel.test").warn("Refused: {who}", who=FORGED)
    assert len(written.lines()) == 1
    assert "forged" in written.lines()[0]


def test_traceback_stays_readable() -> None:
    written = Written()
    observer = FileLogObserver(written, text_line)
    globalLogPublisher.addObserver(observer)
    try:
        raise ValueError(FORGED)
    except ValueError:
        Logger("kestrel.test").failure("It failed: {who}", who=FORGED)
    finally:
        globalLogPublisher.removeObserver(observer)
    first, *others = written.getvalue().removesuffix("\n").split("\n")
    assert "It failed: \\x0d\\x0a2026" in first
    assert len(others) > 2
    assert all(line.startswith("\t") for line in others), "they are lines of the event"
    assert not CONTROLS & set("".join(line.removeprefix("\t") for line in others))


def test_json_line_is_the_same_event() -> None:
    event = json.loads(json_line({"log_format": "{who}", "who": FORGED}).removeprefix("\x1e"))
    assert event["who"] == FORGED

"""Refusals in the log: what they name, and a limit of lines."""

from __future__ import annotations

from twisted.logger import capturedLogs, formatEvent

from kestrel.config.load import loads
from kestrel.session.session_context import LOG_WINDOW_S, MAX_LOG_LINES, RefusalLog
from kestrel.testing.server import MemoryServer


def test_refusal_log_names_client_and_request() -> None:
    server = MemoryServer(config=loads('[[queues]]\nname = "orders"\nwhiteListClientIdForEnqueue = "CN=shop"\n'))
    client = server.connect()
    with capturedLogs() as events:
        client.send(b"set orders 0 0 6\r\nsecret\r\n")
    lines = [formatEvent(event) for event in events]
    assert len(lines) == 1
    assert "(no name): this client may not put to orders" in lines[0]
    assert "secret" not in lines[0]


def test_refusal_log_limits_lines_per_second() -> None:
    now = 0.0
    refusal_log = RefusalLog(lambda: now)
    with capturedLogs() as events:
        for _ in range(1000):
            refusal_log.log("peer", b"CN=shop", "no")
        assert len(events) == MAX_LOG_LINES
        now += LOG_WINDOW_S
        refusal_log.log("peer", b"CN=shop", "no")
        refusal_log.log("peer", b"CN=shop", "no")
    assert (
        formatEvent(events[MAX_LOG_LINES])
        == "Refused: peer ('CN=shop'): no; 990 more refusals before it are not logged"
    )
    assert formatEvent(events[MAX_LOG_LINES + 1]) == "Refused: peer ('CN=shop'): no"

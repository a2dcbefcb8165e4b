"""Figures of fanout queues, aliases and journals, and traces in the log."""

from __future__ import annotations

from pathlib import Path

from twisted.logger import capturedLogs, formatEvent

from kestrel.config.load import loads
from kestrel.testing.server import MemoryClient, MemoryServer
from tests.config_tables import alias, queue
from tests.memcache_text import END, STORED, items, put, set_, stat, stats, value


def dumped(client: MemoryClient, name: bytes) -> dict[str, str]:
    """Return the figures of one queue or alias from `dump_stats`."""
    first, *lines, brace, end = client.ask(b"dump_stats %b\r\n" % name).decode().splitlines()
    assert (first, brace, end) == (f"queue '{name.decode()}' {{", "}", "END")
    return dict(line.strip().split("=", 1) for line in lines)


def test_parent_lists_its_children(tmp_path: Path) -> None:
    server = MemoryServer(folder=tmp_path / "queues")
    client = server.connect()
    assert client.ask(set_(b"a+y", b"one") + set_(b"a", b"one") + set_(b"ab+z", b"one")) == STORED * 3
    assert client.ask(b"get a+x\r\n") == END
    assert stats(client)["queue_a_children"] == dumped(client, b"a")["children"]
    assert sorted(dumped(client, b"a")["children"].split(",")) == ["a+x", "a+y"]
    for name in (b"a+x", b"a+y", b"ab+z"):
        assert "children" not in dumped(client, name)
        assert f"queue_{name.decode()}_children" not in stats(client)
    client.ask(b"delete a+y\r\n")
    assert dumped(client, b"a")["children"] == "a+x"
    server.restart()
    client = server.connect()
    assert dumped(client, b"a")["children"] == "a+x"
    client.ask(b"delete a+x\r\n")
    assert "children" not in dumped(client, b"a")


def test_alias_counts_its_puts() -> None:
    rest = alias("inner", "full") + queue("full", "maxItems = 3")
    server = MemoryServer(config=loads(alias("al", "one", "inner") + rest))
    client = server.connect()
    assert dumped(client, b"al") == {"put_items": "0", "put_bytes": "0", "children": "one,inner"}
    assert client.ask(set_(b"one", b"a queue's own") + set_(b"al", b"12") + set_(b"al", b"345")) == STORED * 3
    expected = {"put_items": "2", "put_bytes": "5", "children": "one,inner"}
    assert dumped(client, b"al") == expected
    figures = stats(client)
    assert {name: figures[f"queue_al_{name}"] for name in expected} == expected
    assert [name for name in figures if name.startswith("queue_al_")] == [f"queue_al_{name}" for name in expected]
    assert figures["queue_inner_children"] == "full"
    assert "queue 'al' {" in client.ask(b"dump_stats\r\n").decode()
    server.reload(loads(alias("al", "two", "inner") + rest))
    assert dumped(client, b"al") == {"put_items": "2", "put_bytes": "5", "children": "two,inner"}
    put(client, b"al", b"6")
    assert dumped(client, b"al")["put_bytes"] == "6"


def test_total_items_of_queue_include_items_found_at_start(tmp_path: Path) -> None:
    server = MemoryServer(folder=tmp_path / "queues")
    client = server.connect()
    put(client, b"work", b"one", b"two", b"three")
    assert client.ask(b"get work\r\n") == value(b"work", b"one")
    assert client.ask(b"get work/open\r\nget work/abort\r\n") == value(b"work/open", b"two") + END
    assert stat(client, b"work", "total_items") == "3"
    server.restart()
    client = server.connect()
    assert stat(client, b"work", "total_items") == "2"
    put(client, b"work", b"four")
    assert stat(client, b"work", "total_items") == stats(client)["queue_work_total_items"] == "3"
    assert stats(client)["total_items"] == "1", "the server's own total counts only puts"
    assert items(client, b"work") == [b"two", b"three", b"four"]
    assert stat(client, b"work", "total_items") == "3"


def test_rewrites_and_rotations_are_counted(tmp_path: Path) -> None:
    config = loads(queue("rotated", "maxMemorySize = 1000") + queue("rewritten", "defaultJournalSize = 1000"))
    server = MemoryServer(folder=tmp_path / "queues", config=config)
    client = server.connect()

    def counts(name: bytes) -> tuple[str, str]:
        return stat(client, name, "journal_rewrites"), stat(client, name, "journal_rotations")

    for number in range(3):
        for name in (b"rotated", b"rewritten"):
            put(client, name, b"x" * 300)
            assert counts(name) == ("0", "0")
        assert stat(client, b"rotated", "logsize") == str((number + 1) * (21 + 300))
    put(client, b"rotated", b"x" * 300)
    put(client, b"rewritten", b"x" * 300)
    assert counts(b"rotated") == ("0", "1"), "a file over maxMemorySize is rotated"
    assert counts(b"rewritten") == ("0", "0")
    assert items(client, b"rewritten") == [b"x" * 300] * 4
    assert counts(b"rewritten") == ("1", "0"), "the file of an empty queue over defaultJournalSize is rewritten"
    for _ in range(4):
        put(client, b"rotated", b"x" * 300)
    assert counts(b"rotated") == ("0", "2")
    for _ in range(4):
        put(client, b"rewritten", b"x" * 300)
    assert len(items(client, b"rewritten")) == 4
    assert counts(b"rewritten") == ("2", "0")
    figures = stats(client)
    assert (figures["queue_rewritten_journal_rewrites"], figures["queue_rotated_journal_rotations"]) == ("2", "2")
    server.restart()
    client = server.connect()
    assert counts(b"rotated") == counts(b"rewritten") == ("0", "0"), "counted since the start"


# Traces.


def test_enable_trace_logs_each_open_confirm_and_abort() -> None:
    config = loads("maxOpenTransactions = 10\n" + queue("traced", "enableTrace = true"))
    client = MemoryServer(config=config).connect()
    for name in (b"traced", b"other"):
        assert client.ask(set_(name, b"secret") * 4) == STORED * 4

    def logged(request: bytes) -> list[str]:
        with capturedLogs() as events:
            client.ask(request)
        return [str(formatEvent(event)).lower() for event in events]

    for request, word in (
        (b"get %b/open\r\n", "open"),
        (b"get %b/close\r\n", "confirm"),
        (b"get %b/open\r\n", "open"),
        (b"get %b/abort\r\n", "abort"),
        (b"monitor %b 10 1\r\n", "open"),
        (b"confirm %b 1\r\n", "confirm"),
    ):
        [line] = logged(request % b"traced")
        assert "traced" in line
        assert word in line
        assert "secret" not in line
        assert logged(request % b"other") == []
    opened = [line.rpartition(" ")[2] for line in logged(b"monitor traced 10 2\r\n")]
    [line] = logged(b"confirm traced 2\r\n")
    assert len(opened) == 2
    assert line.endswith(f"[{', '.join(xids.strip('[]') for xids in opened)}]"), "the line names each id"


def test_enable_session_trace_logs_start_and_end_of_connections() -> None:
    for is_traced in (True, False):
        server = MemoryServer(config=loads(f"enableSessionTrace = {str(is_traced).lower()}"))
        with capturedLogs() as begun:
            clients = [server.connect(), server.connect()]
            server.settle()
        assert len(begun) == 2 * is_traced
        with capturedLogs() as meanwhile:
            assert clients[0].ask(set_(b"work", b"one") + b"get work\r\n") == STORED + value(b"work", b"one")
        assert len(meanwhile) == 0
        with capturedLogs() as ended:
            clients[0].disconnect()
            clients[1].ask(b"quit\r\n")
            assert clients[1].is_closed
        assert len(ended) == 2 * is_traced
        if is_traced:
            assert formatEvent(begun[0]) != formatEvent(ended[0])


def test_figures_of_recreated_queue_start_at_zero(tmp_path: Path) -> None:
    server = MemoryServer(folder=tmp_path / "queues")
    client = server.connect()
    assert client.ask(set_(b"work", b"one") * 3) == STORED * 3
    client.ask(b"get work/open\r\nget work/abort\r\nget work\r\nflush work\r\ndelete work\r\n")
    server.advance(5)
    put(client, b"work", b"two")
    names = ["items", "total_items", "transactions", "canceled_transactions", "total_flushes", "age"]
    assert [stat(client, b"work", name) for name in names] == ["1", "1", "0", "0", "0", "0"]
    assert int(stat(client, b"work", "create_time")) == server.now_ms()
    server.restart()
    client = server.connect()
    assert [stat(client, b"work", name) for name in names] == ["1", "1", "0", "0", "0", "0"]

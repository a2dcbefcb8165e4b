"""`stats`, the admin port and its metrics agree, whatever clients do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kestrel.config.load import loads
from kestrel.config.model import Config
from kestrel.escaping import escape_non_ascii, show_name, unescape_name
from kestrel.testing.server import MemoryClient, MemoryServer
from tests import config_tables
from tests.admin.browsing import Admin
from tests.memcache_text import set_

CONFIG: Final = "\n".join(
    [
        "maxOpenTransactions = 5",
        config_tables.queue("small", "maxItems = 3", "discardOldWhenFull = true"),
        config_tables.queue("full", "maxItems = 2"),
        config_tables.queue("short", "maxAge = '1s'", "expireToQueue = 'expired'"),
        config_tables.queue("only", "fanoutOnly = true"),
        config_tables.queue("poisoned", "maxRedeliveries = 2", "errorQueue = 'failed'"),
        config_tables.alias("al", "work", "full", "only"),
    ]
)

NAMES: Final = (
    *(b"work", b"work+a", b"small", b"full", b"short", b"only", b"only+x", b"poisoned", b"al"),
    *(b"\xe9", rb"\xe9"),
)
COMMANDS: Final = (
    *(b"get %b", b"get %b/open", b"get %b/close", b"get %b/close/open", b"get %b/abort", b"get %b/peek"),
    *(b"get %b/t=1000", b"get %b/t=1000/open", b"flush %b", b"delete %b", b"flush_expired %b", b"monitor %b 1 3"),
    *(b"confirm %b 1", b"dump_stats %b"),
)

Step = Callable[[MemoryServer, list[MemoryClient]], object]
CLIENTS: Final = 3
WHO = st.integers(0, CLIENTS - 1)


def _put(who: int, name: bytes, size: int, expiry: int) -> Step:
    return lambda server, clients: clients[who].ask(set_(name, b"x" * size, expiry))


def _command(who: int, command: bytes, name: bytes) -> Step:
    return lambda server, clients: clients[who].ask(command % name + b"\r\n")


def _leave(who: int) -> Step:
    def leave(server: MemoryServer, clients: list[MemoryClient]) -> None:
        clients[who].disconnect()
        clients[who] = server.connect()

    return leave


def _wait(seconds: float) -> Step:
    return lambda server, clients: server.advance(seconds)


STEPS = st.lists(
    st.one_of(
        st.builds(_put, WHO, st.sampled_from(NAMES), st.integers(0, 40), st.sampled_from([0, 0, 0, 1])),
        st.builds(_command, WHO, st.sampled_from(COMMANDS), st.sampled_from(NAMES)),
        st.builds(_leave, WHO),
        st.builds(_wait, st.sampled_from([0.1, 0.5, 1.25, 70.0])),
    ),
    min_size=10,
    max_size=50,
)

WRITTEN_MEANWHILE: Final = {"bytes_read", "bytes_written"}
OTHER_NAMES: Final = {"curr_items": "items", "curr_connections": "connections", "logsize": "journal_size"}
NO_NUMBERS: Final = {"version", "build", "children"}
TRAFFIC: Final = ("put_items", "put_bytes", "get_items_hit", "get_items_miss")
TOLD_OTHERWISE: Final = {"uptime", "time", "age"}


def stats(client: MemoryClient) -> dict[str, str]:
    """Return the statistics."""
    lines = client.ask(b"stats\r\n").decode("latin-1").splitlines()
    assert lines.pop() == "END"
    return dict(line.removeprefix("STAT ").split(" ", 1) for line in lines)


def split(name: str, queues: list[str]) -> tuple[str, str]:
    """Return the queue of a statistic, or "" for the server, and the figure."""
    if not name.startswith("queue_") or name in ("queue_creates", "queue_deletes", "queue_expires"):
        return "", name
    queue = max((queue for queue in queues if name.startswith(f"queue_{queue}_")), key=len)
    return queue, name.removeprefix(f"queue_{queue}_")


def metrics(admin: Admin) -> dict[tuple[str, str], float]:
    """Return every sample by its name and queue."""
    families = text_string_to_metric_families(admin.get("/metrics").body.decode())
    return {
        (sample.name, sample.labels.get("queue", "")): sample.value
        for family in families
        for sample in family.samples
        if not sample.labels.keys() - {"queue"}
    }


def in_metrics(found: dict[tuple[str, str], float], queue: str, figure: str) -> float | None:
    """Return that figure in the units of the metrics."""
    prefix = "kestrel_queue_" if queue else "kestrel_"
    names = {"age_msec": "age_seconds", "oldest_age_msec": "oldest_age_seconds", "create_time": "created_seconds"}
    if name := names.get(figure):
        return round(found[f"{prefix}{name}", queue] * 1000)
    return found.get((f"{prefix}{figure}", queue), found.get((f"{prefix}{figure}_total", queue)))


def check_agreement(admin: Admin, asking: MemoryClient) -> None:
    """Check that every figure is the same everywhere."""
    ostrich: Any = admin.get("/stats.json").json
    numbers = {**ostrich["counters"], **ostrich["gauges"]}
    found = metrics(admin)
    overview = admin.get("/api/overview").json
    rows = {row[0]: dict(zip(overview["columns"], row, strict=True)) for row in overview["queues"]}
    queues = [show_name(queue.name) for queue in admin.server.manager.all_queues()]
    aliases = [show_name(name) for name in admin.server.manager.aliases]
    assert list(rows) == queues
    alone = {queue: admin.get("/api/queue/" + quote(unescape_name(queue.encode()))).json["figures"] for queue in queues}
    named = {escape_non_ascii(queue): queue for queue in ["", *queues, *aliases]}
    for name, value in stats(asking).items():
        in_stats, figure = split(name, list(named))
        queue = named[in_stats]
        if figure in NO_NUMBERS | TOLD_OTHERWISE | WRITTEN_MEANWHILE:
            continue
        exact = float(value)
        in_ostrich = (f"q/{queue}/" if queue else "") + OTHER_NAMES.get(figure, figure)
        assert numbers[in_ostrich] == (exact // 1000 if figure == "create_time" else exact), name
        if queue in aliases:
            continue
        assert in_metrics(found, queue, figure) == exact, name
        if queue:
            assert rows[queue].get(figure, exact) == exact, name
            assert alone[queue][figure] == exact, name
        else:
            assert overview["server"]["figures"].get(figure, exact) == exact, name
    for queue in queues:
        for figure in TRAFFIC:  # not in `stats`
            exact = numbers[f"q/{queue}/{figure}"]
            told = in_metrics(found, queue, figure)
            assert told == rows[queue][figure] == alone[queue][figure] == exact, queue
    counters = admin.server.manager.counters
    assert found["kestrel_request_size_bytes_count", ""] == counters.total_items
    assert ostrich["metrics"]["request_size"]["count"] == counters.total_items


@settings(max_examples=80)
@given(STEPS)
def test_all_statistics_agree(steps: list[Step]) -> None:
    server = MemoryServer(config=loads(CONFIG), session_settings=Config(max_open_transactions=5))
    admin = Admin(server=server)
    clients = [server.connect() for _ in range(CLIENTS)]
    asking = server.connect()
    for step in steps:
        step(server, clients)
    server.advance(1)
    check_agreement(admin, asking)

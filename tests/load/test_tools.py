"""Each load tool with a real server, over each protocol."""

from __future__ import annotations

import pytest

from tests.load.conftest import at, run, told
from tests.server.running import Server

SMALL = {
    "flood": ("--items", 300, "--prefill", 50, "--clients", 2, "--pipeline", 10, "--bytes", "24..2000"),
    "many-clients": ("--items", 60, "--clients", 20, "--pause", "10ms"),
    "put-many": ("--items", 100, "--clients", 5, "--queues", 3),
    "packing": ("--items", 100, "--cycles", 2, "--clients", 2),
    "leaky-reader": ("--items", 100, "--clients", 4, "--leak", "0.2", "--hold", "100ms"),
}
PUT = {"flood": 350, "many-clients": 60, "put-many": 100, "packing": 200, "leaky-reader": 100}


@pytest.mark.parametrize("tool", SMALL)
@pytest.mark.parametrize("protocol", ["memcache", "text", "thrift"])
def test_every_item_is_delivered_once_and_no_queue_remains(server: Server, tool: str, protocol: str) -> None:
    done = told(run(tool, *at(server, protocol), *SMALL[tool], "--json"))
    assert done["stored"] == PUT[tool]
    assert [done[what] for what in ("missing", "doubled", "spoiled", "refused", "foreign")] == [0] * 5
    puts = [lane["items"] for lane in done["lanes"] if lane["name"].startswith(("put", "prefill"))]
    assert sum(puts) == PUT[tool]
    assert all(lane["max_ms"] > 0 for lane in done["lanes"])
    with server.connect() as client:
        assert not [name for name in client.stats() if name.startswith("queue_load_")]

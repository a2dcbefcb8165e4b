"""/metrics, in the format of Prometheus."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from kestrel.escaping import show_name
from tests.admin.browsing import Admin
from tests.memcache_text import set_

STRANGE = (b'"quoted"', b"back\\slash", b"\\", b'\\"', b"\\n", b"\xe9t\xe9", b"\xff", b"{}", b"a,b=c", b"a+b")


def families(admin: Admin) -> dict[str, Metric]:
    """Return all families by name. Each must occur once."""
    reply = admin.get("/metrics")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = reply.body.decode()
    declared = Counter(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    assert not [name for name, times in declared.items() if times > 1]
    found = list(text_string_to_metric_families(text))
    names = Counter(family.name for family in found)
    assert not [name for name, times in names.items() if times > 1]
    assert not [family.name for family in found if family.type in ("unknown", "untyped") or not family.documentation]
    samples = Counter((sample.name, *sorted(sample.labels.items())) for family in found for sample in family.samples)
    assert not [sample for sample, times in samples.items() if times > 1]
    return {family.name: family for family in found}


def values(family: Metric) -> Mapping[str, float]:
    """Return the values of a figure by queue. The queue of a server's figure is ""."""
    return {sample.labels.get("queue", ""): sample.value for sample in family.samples}


def test_metrics_of_queues_are_labelled_with_their_names() -> None:
    admin = Admin()
    for name in STRANGE:
        admin.send(set_(name, b"12345"))
    found = families(admin)
    named = {show_name(name) for name in STRANGE}
    assert values(found["kestrel_queue_put_bytes"]) == dict.fromkeys(named, 5)
    for family in found.values():
        if family.name.startswith("kestrel_queue_") and any("queue" in sample.labels for sample in family.samples):
            assert values(family).keys() == named, family.name


def test_metrics_of_the_server() -> None:
    admin = Admin()
    admin.send(set_(b"work", b"12345"), b"get work\r\n", b"get work\r\n")
    found = families(admin)
    expected = {
        "kestrel_cmd_set": 1,
        "kestrel_get_hits": 1,
        "kestrel_get_misses": 1,
        "kestrel_curr_items": 0,
        "kestrel_queues": 1,
        "kestrel_queues_untold": 0,
        "kestrel_uptime_seconds": 0,
    }
    assert {name: values(found[name])[""] for name in expected} == expected
    assert [sample.name for sample in found["kestrel_cmd_set"].samples] == ["kestrel_cmd_set_total"]
    assert found["kestrel_cmd_set"].type == "counter"
    assert found["kestrel_curr_items"].type == "gauge"
    (info,) = found["kestrel_info"].samples
    assert (info.labels["version"], info.labels["storage"], info.value) == ("1.2.3", "memory", 1)


def test_the_status_metric_has_one_active_label() -> None:
    admin = Admin()
    admin.post("/api/status/ReadOnly")
    samples = families(admin)["kestrel_status"].samples
    assert [sample.labels["status"] for sample in samples if sample.value] == ["ReadOnly"]
    assert len(samples) == 5


def test_server_sets_have_metrics_if_the_server_joins_any() -> None:
    admin = Admin()
    assert "kestrel_server_set_member" not in families(admin)
    admin.server_sets = {"read": True, "write": False}
    samples = families(admin)["kestrel_server_set_member"].samples
    assert {sample.labels["set"]: sample.value for sample in samples} == {"read": 1, "write": 0}


def test_connections_are_counted_by_protocol() -> None:
    admin = Admin()
    admin.server.connect("text")
    samples = families(admin)["kestrel_connections"].samples
    assert {sample.labels["protocol"]: sample.value for sample in samples} == {"memcache": 0, "text": 1, "thrift": 0}


def test_histograms_are_cumulative_and_end_with_all() -> None:
    admin = Admin()
    for size in (0, 15, 16, 17, 1023, 1024, 1 << 18, (1 << 19) + 3):
        admin.send(set_(b"work", b"x" * size))
    waiting = admin.server.connect()
    waiting.ask(b"get other/t=3000\r\n")
    admin.server.advance(3)
    admin.send(b"get work\r\n" * 3)
    found = families(admin)
    histograms = [family for family in found.values() if family.type == "histogram"]
    assert {family.name for family in histograms} == {
        f"kestrel_{name}"
        for name in (
            *("delivery_latency_seconds", "fill_readbehind_seconds", "fsync_delay_seconds", "get_hit_latency_seconds"),
            *("get_miss_latency_seconds", "get_timeout_seconds", "journal_rewrite_seconds", "set_latency_seconds"),
            *("journal_rotation_seconds", "request_size_bytes"),
        )
    }
    for family in histograms:
        buckets = [(sample.labels["le"], sample.value) for sample in family.samples if "le" in sample.labels]
        (count,) = [sample.value for sample in family.samples if sample.name.endswith("_count")]
        bounds, counts = [float(bound) for bound, _ in buckets], [value for _, value in buckets]
        assert bounds == sorted(set(bounds))
        assert counts == sorted(counts)
        assert buckets[-1] == ("+Inf", count)
    sizes = {sample.labels.get("le"): sample.value for sample in found["kestrel_request_size_bytes"].samples}
    assert {bound: sizes[bound] for bound in ("15", "31", "1023", "2047", "262143", "524287", "1048575")} == {
        "15": 2,
        "31": 4,
        "1023": 5,
        "2047": 6,
        "262143": 6,
        "524287": 7,
        "1048575": 8,
    }
    assert total(found["kestrel_delivery_latency_seconds"]) == pytest.approx(9.0)
    assert total(found["kestrel_get_timeout_seconds"]) == pytest.approx(3.0)


def total(family: Metric) -> float:
    """Return the sum of a histogram."""
    (found,) = [sample.value for sample in family.samples if sample.name.endswith("_sum")]
    return found


def test_histograms_include_deleted_and_masked_queues() -> None:
    admin = Admin()
    admin.send(set_(b"gone", b"123"), b"delete gone\r\n", set_(b"masked", b"45"), set_(b"work", b"6"))
    admin.server.reload(Admin("[[aliases]]\nname = 'masked'\ndestinationQueues = ['work']").server.core.config)
    assert total(families(admin)["kestrel_request_size_bytes"]) == 6


def test_queues_above_the_limit_are_counted_as_omitted() -> None:
    admin = Admin("[admin]\nmaxQueueSeries = 3")
    for number in range(10):
        admin.send(set_(b"queue%d" % number, b"1"))
    found = families(admin)
    assert sorted(values(found["kestrel_queue_items"])) == ["queue0", "queue1", "queue2"]
    assert (values(found["kestrel_queues_untold"])[""], values(found["kestrel_queues"])[""]) == (7, 10)
    assert values(found["kestrel_curr_items"])[""] == 10
    assert total(found["kestrel_request_size_bytes"]) == 10


def test_times_are_in_seconds() -> None:
    admin = Admin()
    admin.send(set_(b"work", b"1") * 2)
    admin.server.advance(1.5)
    admin.send(b"get work\r\n")
    found = families(admin)
    assert values(found["kestrel_queue_age_seconds"]) == {"work": 1.5}
    assert values(found["kestrel_queue_oldest_age_seconds"]) == {"work": 1.5}
    assert values(found["kestrel_queue_delivery_seconds"]) == {"work": 1.5}
    assert values(found["kestrel_queue_created_seconds"]) == {"work": 1_700_000_000}
    assert not [name for name in found if name.endswith(("_msec", "_usec", "_age", "_create_time"))]

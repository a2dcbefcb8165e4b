"""deploy/monitoring: the alert rules and the dashboard use only metrics that `/metrics` has, and show all of them.

`make deploy-check` also runs the unit tests of the rules with promtool.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kestrel.testing.server import MemoryServer
from tests.admin.browsing import Admin
from tests.child import PATIENCE_S
from tests.memcache_text import set_
from tests.storage.backends import BACKENDS

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy" / "monitoring"
PAGE: Final = (ROOT / "docs" / "containers.md").read_text()
RULES: Final = [
    rule for group in yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: Final = json.loads((FOLDER / "dashboard.json").read_text())
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

NOT_SHOWN: Final = {
    "kestrel_curr_connections": "the sum of kestrel_connections",
    "kestrel_delayed_items": "the sum of kestrel_queue_delayed_items, and the delayed items of aliases",
    "kestrel_puts_refused": "an alert reports it",
    "kestrel_queue_created_seconds": "constant while a queue is open",
    "kestrel_queue_scroll_done_ranges": "a detail of the reader file of a scroll",
    "kestrel_queue_total_items_total": "kestrel_queue_put_items_total, and the items loaded at the start",
    "kestrel_reserved_memory_ratio": "a sum of settings",
    "process_start_time_seconds": "the start that kestrel_uptime_seconds counts from",
    "process_virtual_memory_bytes": "address space, which limits nothing",
}
"""Metrics that are on no panel, with the reason."""

OF_PROMETHEUS: Final = {"instance", "job"}
"""Labels that Prometheus adds."""

Labels = dict[str, set[str]]
"""The values of each label of a metric."""


def exported(admin: Admin) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the name and labels of each sample of `/metrics`."""
    for family in text_string_to_metric_families(admin.get("/metrics").body.decode()):
        yield from ((sample.name, sample.labels) for sample in family.samples if not sample.name.endswith("_created"))


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Labels]:
    """Return the values of each label of each metric, from a server of each storage that joins server sets."""
    found: dict[str, Labels] = defaultdict(dict)
    for name, backend in BACKENDS.items():
        server = MemoryServer(folder=tmp_path_factory.mktemp(name), make_storage=backend.make)
        admin = Admin(server=server)
        admin.server_sets = {"read": True, "write": True}
        admin.send(set_(b"work", b"1"))
        for metric, labels in exported(admin):
            for label, value in labels.items():
                found[metric].setdefault(label, set()).add(value)
            found.setdefault(metric, {})
        server.stop()
        server.settle()
    return found


class Expression(NamedTuple):
    """A PromQL expression, and the rule or panel that contains it."""

    where: str
    text: str


def plain(text: str) -> str:
    """Return an expression of Grafana with values in place of its variables."""
    return text.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$queue", ".*")


def of_variable(query: str) -> str:
    """Return the PromQL expression of a variable of the dashboard."""
    return re.sub(r"label_values\((.*), (\w+)\)", r"count by (\2) (\1)", plain(query))


EXPRESSIONS: Final = [
    *(Expression(rule["alert"], rule["expr"]) for rule in RULES),
    *(Expression(panel["title"], plain(target["expr"])) for panel in PANELS for target in panel["targets"]),
    *(
        Expression(f"variable {each['name']}", of_variable(each["definition"]))
        for each in DASHBOARD["templating"]["list"]
        if each["type"] == "query"
    ),
]


def nodes_of(text: str) -> list[Any]:
    """Return all nodes of a PromQL expression."""
    nodes: list[Any] = []
    promql_parser.walk(promql_parser.parse(text), nodes.append)
    return nodes


def selectors_of(text: str) -> list[Any]:
    """Return the selectors of metrics of a PromQL expression."""
    return [node for node in nodes_of(text) if isinstance(node, promql_parser.VectorSelector)]


def problems_of(text: str, metrics: Mapping[str, Labels]) -> list[str]:
    """Return the metrics, labels and values of an expression that `/metrics` does not have."""
    problems = []
    known = set(OF_PROMETHEUS)
    for selector in selectors_of(text):
        if selector.name != "up" and selector.name not in metrics:
            problems.append(f"no metric {selector.name}")
            continue
        labels = metrics.get(selector.name, {})
        known |= labels.keys()
        for matcher in selector.matchers.matchers:
            wanted = set(matcher.value.split("|")) if matcher.name == "status" else set()
            if matcher.name not in labels.keys() | OF_PROMETHEUS or wanted - labels.get(matcher.name, set()):
                problems.append(f"{selector.name} has no {matcher}")
    for node in nodes_of(text):
        modifier = getattr(node, "modifier", None)
        grouping = getattr(modifier, "matching", None) or modifier
        problems += [f"no label {label}" for label in getattr(grouping, "labels", None) or () if label not in known]
    return problems


def test_expressions_use_metrics_and_labels_that_exist(metrics: Mapping[str, Labels]) -> None:
    assert [(each, problems) for each in EXPRESSIONS if (problems := problems_of(each.text, metrics))] == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rate(kestrel_cmd_put_total[5m]) > 0", "no metric kestrel_cmd_put_total"),
        ('kestrel_status{status="Gone"}', 'kestrel_status has no status="Gone"'),
        ('kestrel_curr_items{queue="a"}', 'kestrel_curr_items has no queue="a"'),
        ("sum by (name) (kestrel_queue_items)", "no label name"),
        ("kestrel_bytes and on (host) kestrel_queues", "no label host"),
    ],
)
def test_unknown_names_in_an_expression_are_found(text: str, problem: str, metrics: Mapping[str, Labels]) -> None:
    assert problems_of(text, metrics) == [problem]


def family(metric: str) -> str:
    """Return the name of a histogram without the ending of its series, or the name of another metric."""
    return re.sub(r"_(?:sum|count|bucket)$", "", metric)


def test_metrics_have_a_panel_or_a_reason(metrics: Mapping[str, Labels]) -> None:
    shown = {
        selector.name
        for panel in PANELS
        for target in panel["targets"]
        for selector in selectors_of(plain(target["expr"]))
    }
    assert {*map(family, metrics)} - {*map(family, shown)} == NOT_SHOWN.keys()


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_panels_use_the_variables_of_the_dashboard(metrics: Mapping[str, Labels]) -> None:
    names = {each["name"] for each in DASHBOARD["templating"]["list"]}
    text = (FOLDER / "dashboard.json").read_text()
    assert set(re.findall(r"\$\{?(?!__)(\w+)", text)) == names == {"datasource", "instance", "queue"}
    for panel in PANELS:
        for target in panel["targets"]:
            assert "$instance" in target["expr"]
            of_queues = any("queue" in metrics[each.name] for each in selectors_of(plain(target["expr"])))
            assert ("$queue" in target["expr"]) == of_queues
            assert panel["datasource"]["uid"] == target["datasource"]["uid"] == "${datasource}"


def test_rules_have_a_severity_and_annotations() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("info", "warning", "critical"), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"], rule["alert"]


def test_every_rule_has_a_unit_test() -> None:
    tested = re.findall(r"\bKestrel\w+", (FOLDER / "rules_test.yaml").read_text())
    assert {rule["alert"] for rule in RULES} == set(tested)


def test_page_lists_the_alerts_with_their_severities() -> None:
    listed = re.findall(r"^\| `(Kestrel\w+)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert listed == [(rule["alert"], rule["labels"]["severity"]) for rule in RULES]


def test_command_of_the_page_wraps_the_rules_for_the_operator(tmp_path: Path) -> None:
    command = re.search(r"```sh\n(.* > prometheus_rule\.yaml)\n```", PAGE, re.DOTALL)
    assert command is not None
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    subprocess.run(["bash", "-c", command[1]], cwd=tmp_path, check=True, timeout=PATIENCE_S)
    rule = yaml.safe_load((tmp_path / "prometheus_rule.yaml").read_text())
    assert (rule["kind"], rule["metadata"]) == ("PrometheusRule", {"name": "kestrel"})
    assert [each for group in rule["spec"]["groups"] for each in group["rules"]] == RULES

"""Every option, and the errors of wrong ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kestrel.spark.options import SourceFailed
from kestrel.spark.table.options import SourceOptions, parse_options


def parsed(**given: str) -> SourceOptions:
    return parse_options({"path": "/spool", **given})


def test_path_alone_has_all_defaults() -> None:
    options = parsed()
    assert options.paths == ("/spool",)
    assert (options.server, options.queue, options.lists_errors) == (None, None, False)
    assert (options.has_payload, options.is_failfast, options.pushes_filters) == (True, False, False)
    assert (options.modified_after_s, options.modified_before_s) == (None, None)
    assert options.partition_bytes is None
    assert options.parallelism >= 1


def test_several_paths_are_accepted_as_spark_passes_them() -> None:
    assert parse_options({"paths": '["/a", "/b"]'}).paths == ("/a", "/b")
    assert parse_options({"path": "/c", "paths": '["/a"]'}).paths == ("/c", "/a")


@pytest.mark.parametrize("given", ["/a", "{}", '"/a"', "[1]", "[", "null"])
def test_paths_that_are_no_list_are_refused(given: str) -> None:
    with pytest.raises(SourceFailed, match=r"give several paths as load\("):
        parse_options({"paths": given})


@pytest.mark.parametrize("given", [{}, {"paths": "[]"}])
def test_missing_path_is_reported(given: dict[str, str]) -> None:
    with pytest.raises(SourceFailed, match=r'no path is given: load\("/var/spool/kestrel"\)'):
        parse_options(given)


def test_names_may_have_any_case() -> None:
    assert parsed(PARTITIONBYTES="5", filterpushdown="TRUE").partition_bytes == 5
    assert parsed(FilterPushdown="True").pushes_filters


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"server": "s"}, "server", "s"),
        ({"queue": "w*"}, "queue", "w*"),
        ({"view": "errors"}, "lists_errors", True),
        ({"view": "Records"}, "lists_errors", False),
        ({"payload": "false"}, "has_payload", False),
        ({"partitionBytes": "1"}, "partition_bytes", 1),
        ({"partitionBytes": "10737418240"}, "partition_bytes", 10 * 1024**3),
        ({"partitionBytes": "16MiB"}, "partition_bytes", 16 * 1024**2),
        ({"parallelism": "40"}, "parallelism", 40),
        ({"mode": "FAILFAST"}, "is_failfast", True),
        ({"mode": "permissive"}, "is_failfast", False),
        ({"filterPushdown": "true"}, "pushes_filters", True),
        ({"modifiedAfter": "1970-01-01T00:00:10"}, "modified_after_s", 10.0),
        ({"modifiedBefore": "1970-01-01T01:00:10+01:00"}, "modified_before_s", 10.0),
        ({"modifiedAfter": "2026-01-31"}, "modified_after_s", datetime(2026, 1, 31, tzinfo=UTC).timestamp()),
    ],
)
def test_option_has_a_meaning(given: dict[str, str], field: str, value: object) -> None:
    assert getattr(parsed(**given), field) == value


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"view": "rows"}, "view must be records or errors, not 'rows'"),
        ({"payload": "no"}, "payload must be true or false, not 'no'"),
        ({"mode": "DROPMALFORMED"}, "mode must be PERMISSIVE or FAILFAST, not 'DROPMALFORMED'"),
        ({"filterPushdown": ""}, "filterPushdown must be true or false, not ''"),
        ({"parallelism": "0"}, "parallelism must be a whole number of at least 1, not '0'"),
        ({"parallelism": "two"}, "parallelism must be a whole number of at least 1, not 'two'"),
        ({"partitionBytes": "0"}, "partitionBytes must be at least 1"),
        ({"partitionBytes": "-1"}, "partitionBytes: "),
        ({"partitionBytes": "64 sheep"}, "partitionBytes: "),
        ({"modifiedAfter": "yesterday"}, "modifiedAfter must be a time such as 2026-01-31T12:00:00, in UTC, not"),
        ({"pajload": "true"}, "there is no option pajload; did you mean payload?"),
        ({"partitonbytes": "1"}, "there is no option partitonbytes; did you mean partitionBytes?"),
        ({"servers": "s"}, "there is no option servers; did you mean server?"),
        ({"header": "true"}, "there is no option header: the options are server, queue, view, payload"),
    ],
)
def test_mistake_is_named_with_the_way_out(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceFailed) as raised:
        parsed(**given)
    assert str(raised.value).startswith(sentence)

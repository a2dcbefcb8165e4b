"""The page of a report and its summary: complete, well formed, and safe for any queue name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Final
from xml.etree import ElementTree

import pytest

from kestrel.spark.report import report_text as words
from kestrel.spark.report.page import page
from kestrel.spark.report.report_data import InputSummary, ReportData
from kestrel.spark.report.report_text import as_json, format_lines
from tests.spark.reports import samples as samples

EMPTY: Final = {"img", "meta", "link", "br", "hr", "input"}
SVG: Final = re.compile("<svg.*?</svg>", re.DOTALL)


class Reader(HTMLParser):
    """Every tag and attribute of a page, and its text. Each tag that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, name: str) -> list[str]:
        return [value for _, key, value in self.attributes if key == name]


@pytest.fixture(scope="module")
def hostile() -> str:
    return page(samples.hostile_report())


def test_queue_names_are_escaped(hostile: str) -> None:
    read = Reader(hostile)
    parts = [samples.part(name, [("alpha", "work"), ("beta", "work")], 40) for name in (None, "alpha", "beta")]
    tame = Reader(page(samples.report(*parts)))
    assert set(read.tags) <= set(tame.tags)
    assert {name for _, name, _ in read.attributes} <= {name for _, name, _ in tame.attributes}
    for name in samples.HOSTILE:
        assert words.format_name(name) in read.text
    assert "\x85" not in hostile


def test_page_runs_no_script_and_loads_nothing(hostile: str) -> None:
    read = Reader(hostile)
    assert not {"script", "iframe", "object", "embed", "link", "form", "img", "base"}.intersection(read.tags)
    assert [name for _, name, _ in read.attributes if name.startswith("on")] == []
    assert all(value.startswith("#") for name in ("href", "xlink:href", "src") for value in read.values(name))
    (policy,) = [value for value in read.values("content") if "default-src" in value]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "@import" not in hostile and "url(http" not in hostile


def test_ids_are_unique_and_references_resolve(hostile: str) -> None:
    read = Reader(hostile)
    ids = read.values("id")
    assert len(ids) == len(set(ids))
    labels = [word for value in read.values("aria-labelledby") for word in value.split()]
    clips = re.findall(r"url\(#([^)]*)\)", hostile)
    assert labels and clips
    assert {value.removeprefix("#") for value in read.values("href")} | {*labels, *clips} <= set(ids)


def pictures(text: str) -> Iterator[ElementTree.Element]:
    for match in SVG.findall(text):
        yield ElementTree.fromstring(match)


def test_pictures_are_well_formed_and_described_in_words(hostile: str) -> None:
    found = list(pictures(hostile))
    assert len(found) == 3 * 5
    for picture in found:
        assert picture.get("role") == "img"
        title, description = picture[0], picture[1]
        assert [title.tag.rpartition("}")[2], description.tag.rpartition("}")[2]] == ["title", "desc"]
        assert title.text and description.text and re.search("[0-9]", description.text)
        assert not [each for each in picture.iter() if each.tag.rpartition("}")[2] in ("style", "metadata", "script")]


def test_pictures_have_the_light_and_dark_colours_of_the_page(hostile: str) -> None:
    for picture in pictures(hostile):
        styles = " ".join(each.get("style", "") for each in picture.iter())
        assert "var(--ink)" in styles
        assert not re.findall("#[0-9a-f]{6}", styles)
    variables = set(re.findall(r"var\((--[a-z]+)\)", hostile))
    day, night = re.findall(r":root \{(.*?)\}", hostile, re.DOTALL)
    assert variables <= set(re.findall("(--[a-z-]+):", day))
    assert set(re.findall("(--[a-z-]+):", day)) == set(re.findall("(--[a-z-]+):", night))


def test_figures_are_in_the_page(hostile: str) -> None:
    text = Reader(hostile).text
    for told in (
        "2 servers, 2 folders, 14 files, 118 MiB",
        "1 file with problems",
        "an opcode that there is not: 0x2a",
        "12 removals since the last add",
        "87 of 92 items that were taken never came back",
        "first 14 of 40; 26 are left out",
        "900ms to 1.5s",
    ):
        assert told in text


def test_page_says_that_a_folder_has_no_journals() -> None:
    empty = samples.report(read=InputSummary(("/x",), ("/x",), 0, 0), problems=(), problem_count=0)
    read = Reader(page(empty))
    assert "There are no journals." in read.text
    assert "No file has a problem." in read.text
    assert "svg" not in read.tags
    assert list(format_lines(empty)) == ["1 server, 1 folder, 0 files, 0 B", "there are no journals"]


def test_omitted_servers_and_problems_are_counted() -> None:
    busy = [samples.part(name, [("alpha", "work")]) for name in (None, "alpha")]
    text = Reader(page(samples.report(*busy, servers_left_out=7, problem_count=1234))).text
    assert "7 servers less busy" in text
    assert "1,234 files with problems" in text
    assert "The first 1 are listed" in text


@pytest.mark.parametrize("first_ms", [1, samples.START_MS, 2**44 - 1])
def test_one_item_of_any_time_makes_a_picture(first_ms: int) -> None:
    name = ("alpha", "work")
    nothing = samples.waiting(*name, 0, 5, *[None] * 8)
    for waits in ([samples.waiting(*name, 1, 0, *[0] * 8)], [nothing], [samples.waiting(*name, 1, 0, *[2**44] * 8)]):
        one = replace(
            samples.part("alpha", [name]),
            throughput=[samples.throughput(first_ms, 1, 1, 0, 0)],
            depth=[samples.depth(first_ms, 0, 1, 0, 1)],
            redeliveries=None,
            waits=waits,
        )
        found = list(pictures(page(samples.report(one))))
        assert len(found) == (3 if waits == [nothing] else 4)


def test_unknown_times_have_no_picture() -> None:
    unknown = [samples.throughput(None, 1, 1, 0, 0)]
    one = replace(samples.part("alpha", [("alpha", "work")]), throughput=unknown, depth=[], waits=[], waiting=None)
    assert len(list(pictures(page(samples.report(one))))) == 2


def test_page_is_reproducible() -> None:
    one = samples.report(samples.part("alpha", [("alpha", "work")]))
    assert page(one) == page(one)


def test_summary_for_users_is_a_table_without_control_characters() -> None:
    lines = list(format_lines(samples.hostile_report()))
    assert lines[0] == "2 servers, 2 folders, 14 files, 118 MiB"
    assert "40 queues: 100 items added, 90 removed, 10 left (5.0 KiB), 2 open" in lines
    assert any(line.startswith("<script>alert(1)</script> on alpha ") for line in lines)
    assert any("caf\xe9\\x85" in line for line in lines)
    assert any(line.startswith("the 14 busiest of 40 queues") for line in lines)
    assert not [line for line in lines if re.search("[\x00-\x1f\x7f-\x9f]", line)]


def test_summary_for_programs_has_every_server_and_the_fleet() -> None:
    told = json.loads(json.dumps(as_json(samples.hostile_report())))
    assert [each["server"] for each in told["servers"]] == ["alpha", "<b>beta"]
    assert told["fleet"]["queues"] == 40
    assert told["fleet"]["waiting"]["p95_most_ms"] == 1_500
    assert told["fleet"]["expired"]["discarded_maybe"] == 6
    assert (told["state"], told["problems"], told["read"]["files"]) == ("finished", 1, 14)
    nothing: ReportData = samples.report()
    assert as_json(nothing)["fleet"] is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("work", "work"),
        ("\x1b[31m", "\\x1b[31m"),
        ("abc\u202egnp", "abc\\u202egnp"),
        ("\uffff\u2028", "\\uffff\\u2028"),
        ("\udc80", "\\x80"),
    ],
)
def test_names_have_no_invisible_characters(text: str, shown: str) -> None:
    assert words.format_name(text) == shown


def test_long_name_in_a_picture_keeps_both_ends() -> None:
    shown = words.format_label("begin" + "x" * 300 + "end")
    assert len(shown) <= words.LONGEST_LABEL
    assert shown.startswith("begin") and shown.endswith("end")


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0%"), (0.00012, "0.012%"), (0.054, "5.4%"), (0.5, "50%"), (0.99999, "over 99.9%"), (1, "100%")],
)
def test_small_number_is_not_shown_as_zero(share: float, shown: str) -> None:
    assert words.format_percent(share) == shown

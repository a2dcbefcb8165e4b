"""Whichever file of a queue folder is damaged, the server starts, and no other file loses an item.

tests/torture/damage_matrix.py makes the folders and the damages, and has the promises. The tests take a sample of the
damages. `make damage` tries all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.sample import step_between
from tests.torture import damage_matrix as matrix
from tests.torture import damage_scenes as scenes
from tests.torture.damage import lay_out, quick_folder

LONG: Final = b"\xe9" * 61


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> matrix.Report:
    return matrix.check_all(request.param, step_between(matrix.SAMPLE_STEP))


@pytest.mark.parametrize("report", scenes.MAKERS, indirect=True)
@pytest.mark.parametrize("promise", matrix.PROMISES, ids=lambda promise: promise.__name__)
def test_damage_of_one_file(report: matrix.Report, promise: matrix.Promise) -> None:
    assert report.shown(promise) == []


# Scenes.


def test_journal_scene_has_three_files_with_pending_items_in_each() -> None:
    scene = scenes.make_scene("three-file-journal")
    paths = [path for path in scene.files if path.startswith("work")]
    assert len(paths) == 3
    for path in paths:
        assert any(scene.lies_in(data, path) for data in scene.pending[b"work"])


def test_scroll_scene_has_readers_that_differ_and_three_writer_files() -> None:
    scene = scenes.make_scene("scroll-with-two-readers")
    assert len([path for path in scene.files if path.startswith("news.1")]) >= 3
    assert {path for path in scene.files if path.startswith("news.read.")} == {"news.read.:own", "news.read.a"}
    assert scene.pending[b"news"] != scene.pending[b"news+a"]
    assert scene.pending.keys() == {b"news", b"news+a", LONG}
    assert any(path.startswith(matrix.NAMES) for path in scene.files)


def test_hinted_scene_has_a_hint() -> None:
    assert ".kestrel/hints/large" in scenes.make_scene("hinted-scroll").files


@pytest.mark.parametrize("name", scenes.MAKERS)
def test_every_file_is_damaged_at_every_bit(name: str) -> None:
    scene = scenes.make_scene(name)
    found = {(each.path, each.contents) for each in matrix.damages(scene)}
    for path, contents in scene.files.items():
        if path in matrix.UNTRIED or not path.startswith(scene.only):
            continue
        assert {(path, None), (path, b"") if contents else (path, None)} <= found
        for offset in range(len(contents)):
            assert (path, contents[:offset]) in found
            for bit in range(8):
                flipped = bytearray(contents)
                flipped[offset] ^= 1 << bit
                assert (path, bytes(flipped)) in found


@pytest.mark.parametrize("name", scenes.MAKERS)
def test_undamaged_scene_delivers_what_is_pending(name: str) -> None:
    case = undamaged(name)
    assert {queue: set(items) for queue, items in case.first.items.items()} == case.scene.pending
    assert [fault for promise in matrix.PROMISES for fault in promise(case)] == []


# Promises find what breaks them.


def undamaged(name: str) -> matrix.Case:
    scene = scenes.make_scene(name)
    path = min(path for path in scene.files if path.startswith(("work", ".kestrel/storage-scroll")))
    damage = matrix.Damage(path, "nothing", len(scene.files[path]), scene.files[path])
    with quick_folder() as parent:
        lay_out(parent / "queues", scene.files)
        first = matrix.start(parent / "queues", scene)
        return matrix.Case(scene, damage, first, matrix.start(parent / "queues", scene))


def without_last(start: matrix.Start) -> matrix.Start:
    return start._replace(items={queue: items[:-1] for queue, items in start.items.items()})


def with_another(start: matrix.Start) -> matrix.Start:
    return start._replace(items={queue: [*items, b"another"] for queue, items in start.items.items()})


BROKEN: Final[dict[matrix.Promise, Callable[[matrix.Case], matrix.Case]]] = {
    matrix.no_start_fails: lambda case: case._replace(second=case.second._replace(failures={b"work": "no disk"})),
    matrix.an_undamaged_file_loses_no_item: lambda case: case._replace(first=without_last(case.first)),
    matrix.no_item_is_made_up: lambda case: case._replace(first=with_another(case.first)),
    matrix.every_loss_is_logged: lambda case: case._replace(
        first=without_last(case.first), damage=case.damage._replace(contents=(case.damage.contents or b"") + b"\xff")
    ),
    matrix.what_is_cut_off_is_set_aside: lambda case: case._replace(
        damage=case.damage._replace(contents=(case.damage.contents or b"") + b"\xff")
    ),
    matrix.a_second_start_finds_the_same: lambda case: case._replace(second=without_last(case.second)),
}


@pytest.mark.parametrize("promise", matrix.PROMISES, ids=lambda promise: promise.__name__)
def test_promise_finds_a_start_that_breaks_it(promise: matrix.Promise) -> None:
    case = undamaged("three-file-journal")
    assert list(promise(BROKEN[promise](case)))

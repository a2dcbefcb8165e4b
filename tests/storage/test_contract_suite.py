"""The contract suite finds what is broken, passes what is not, and says what it leaves out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from twisted.internet.task import Clock

from examples.backend import LinesStorage, LinesStorageFactory
from kestrel.storage.interfaces import InThread
from kestrel.storage.memory import MemoryStorage, MemoryStorageFactory
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.contract.backend import StorageUnderTest
from kestrel.testing.contract.disk_faults import begin
from kestrel.testing.contract.model_check import ModelItem, differences
from kestrel.testing.contract.requirements import requires
from kestrel.testing.contract.suite import DatabaseContract, OnFaultyDatabase, OnFaultyDisk, StorageContract
from kestrel.testing.databases import MemoryDatabase, MemoryTables
from tests.child import LONG_S, PATIENCE_S
from tests.storage import broken, broken_databases

ROOT = Path(__file__).parents[2]
BROKEN = "tests/storage/broken.py"
BROKEN_DATABASES = "tests/storage/broken_databases.py"
BROKEN_SQLITE = "tests/storage/broken_sqlite.py"

CAUGHT_BY: Mapping[str, tuple[str, ...]] = {
    "TestLosesTheLastItem": (
        "test_restart_keeps_items_unchanged",
        "test_kill_after_a_commit_loses_nothing",
    ),
    "TestReordersOnAbort": ("test_first_xid_put_back_becomes_the_head",),
    "TestForgetsConfirms": (
        "test_restart_does_not_restore_items_confirmed_out_of_order",
        "test_kill_after_a_commit_loses_nothing",
    ),
    "TestDoublesOnCompaction": (
        "test_space_of_taken_items_is_freed",
        "test_maintenance_keeps_the_items",
    ),
    "TestMixesTwoQueues": ("test_similar_names_are_different_queues_after_a_restart",),
    "TestAcknowledgesBeforeTheCommit": (
        "test_acknowledged_commit_survives_a_kill",
        "test_synced_commit_survives_a_power_failure",
    ),
    "TestAcknowledgesALaterBatch": ("test_changes_recorded_during_a_failed_commit_fail",),
    "TestTruncatesZeros": ("test_restart_keeps_arbitrary_bytes",),
    "TestLeaksDeletedQueues": (
        "test_restart_does_not_restore_a_deleted_queue",
        "test_kill_after_a_committed_deletion_restores_nothing",
    ),
    "TestKeepsWhatHasDied": ("test_deletion_of_a_failed_object_deletes_the_reopened_queue",),
}
"""For each broken storage the tests that are about what is wrong with it."""

DATABASES_CAUGHT_BY: Mapping[str, tuple[str, ...]] = {
    "TestForgetsTheNumber": ("test_repeated_batch_succeeds_without_being_applied_again",),
    "TestRemembersTheNumberOfAnother": ("test_each_owner_begins_with_batch_number_one",),
    "TestAppliesQueueByQueue": ("test_batch_with_one_impossible_change_changes_nothing",),
    "TestShowsWhatIsPending": (
        "test_read_sees_whole_batches",
        "test_kill_leaves_whole_batches",
    ),
    "TestBelongsToTwo": ("test_second_owner_is_refused_with_a_reason",),
    "TestListensToTheLastOwner": ("test_replaced_owner_applies_no_batch",),
    "TestIgnoresIsNew": ("test_new_queue_replaces_the_stored_one",),
    "TestLeavesTheEndOfRanges": ("test_removed_range_includes_both_ends",),
    "TestLosesErrors": ("test_last_batch_sets_the_error_count",),
    "TestReadsNewestFirst": ("test_read_returns_at_most_n_items",),
    "TestNeedsRoomForEverything": ("test_items_can_be_removed_from_a_full_database",),
    "TestMixesNames": ("test_names_are_compared_byte_by_byte",),
}
"""The tests that find the bug of each broken database."""

SQLITE_CAUGHT_BY: Mapping[str, str] = {
    "TestNeverSyncs": "test_power_failure_keeps_acknowledged_and_whole_batches",
    "TestKeepsTheRollbackJournalInMemory": "test_power_failure_keeps_acknowledged_and_whole_batches",
    "TestReportsFailedCommitAsNotApplied": "test_failed_sync_in_a_commit_is_database_away",
    "TestReportsFailedCommitAsFull": "test_failed_sync_in_a_commit_is_database_away",
    "TestNeverSyncsAgain": "test_batch_repeated_after_a_failed_sync_survives_power_failure",
    "TestReservesNothing": "test_full_disk_refuses_puts_and_accepts_removes",
    "TestReadsWithoutTheLock": "test_reads_in_other_threads_see_whole_batches",
    "TestOpensAfterClose": "test_list_queues_that_runs_after_close_takes_no_ownership",
}
"""The test that finds the bug of each broken SQLite database. `test_sqlite_contract.py` shows that the correct one
passes."""

TEST_OF_A_DISK = "test_acknowledged_changes_survive_a_crash_at_each_operation"

ENTRY = ModelItem(b"a", 5, 0)

Outcomes = Mapping[tuple[str, str], set[str]]
"""What became of a test, whatever its parameters: by class and name."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Of all tests of the unbroken storage, and of those that are to find the faults of the others; databases too."""
    folder = tmp_path_factory.mktemp("suite")
    wanted = [f"{BROKEN}::TestUnbroken", f"{BROKEN_DATABASES}::TestUnbrokenDatabase"]
    for module, caught_by in ((BROKEN, CAUGHT_BY), (BROKEN_DATABASES, DATABASES_CAUGHT_BY)):
        wanted += [f"{module}::{each}::{test}" for each, tests in caught_by.items() for test in tests]
    wanted += [f"{BROKEN_SQLITE}::{each}::{test}" for each, test in SQLITE_CAUGHT_BY.items()]
    arguments = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}", f"--junitxml={folder / 'report.xml'}"]
    command = [sys.executable, "-m", "pytest", *arguments, *wanted]
    subprocess.run(command, cwd=ROOT, check=False, capture_output=True, timeout=LONG_S)
    found: dict[tuple[str, str], set[str]] = {}
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        ended = {_kind(child) for child in case if child.tag in {"failure", "error", "skipped"}} or {"passed"}
        key = case.attrib["classname"].rpartition(".")[2], case.attrib["name"].partition("[")[0]
        found.setdefault(key, set()).update(ended)
    return found


def _kind(ended: ElementTree.Element) -> str:
    """How a test ended that did not pass: it is a "failure" where the test asked for something that is not so."""
    is_asked_for = ended.attrib["message"].startswith(("assert ", "AssertionError", "Failed: DID NOT RAISE"))
    return ended.tag if ended.tag != "failure" or is_asked_for else "raised"


def test_a_storage_that_is_not_broken_passes_everything_but_what_it_does_not_promise(outcomes: Outcomes) -> None:
    of_it = {name: ended for (each, name), ended in outcomes.items() if each == "TestUnbroken"}
    skipped = {name for name, ended in of_it.items() if ended == {"skipped"}}
    assert len(of_it) > 100
    assert {name: ended for name, ended in of_it.items() if ended != {"passed"} and name not in skipped} == {}
    assert skipped == set(broken.TestUnbroken.left_out)
    assert set(broken.TestUnbroken.left_out.values()) == {
        "needs capability 'errors_kept'",
        "needs capability 'order_kept'",
        "needs capability 'ranges'",
        "needs capability 'shared_fanout'",
        "needs hook 'has_window'",
        "needs the base class OnFaultyDatabase",
    }


def test_a_database_that_is_not_broken_passes_everything(outcomes: Outcomes) -> None:
    of_it = {name: ended for (each, name), ended in outcomes.items() if each == "TestUnbrokenDatabase"}
    left_out = broken_databases.TestUnbrokenDatabase.left_out
    assert len(of_it) > 40
    assert set(left_out.values()) == {"needs hook 'is_embedded'"}
    assert of_it == {name: {"skipped" if name in left_out else "passed"} for name in of_it}


@pytest.mark.parametrize(("name", "test"), [(name, test) for name, tests in CAUGHT_BY.items() for test in tests])
def test_a_broken_storage_is_caught(outcomes: Outcomes, name: str, test: str) -> None:
    assert {"failure"} <= outcomes[name, test] <= {"failure", "passed"}
    assert outcomes["TestUnbroken", test] == {"passed"}


@pytest.mark.parametrize(
    ("name", "test"), [(name, test) for name, tests in DATABASES_CAUGHT_BY.items() for test in tests]
)
def test_a_broken_database_is_caught(outcomes: Outcomes, name: str, test: str) -> None:
    assert {"failure"} <= outcomes[name, test] <= {"failure", "passed"}


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("name", SQLITE_CAUGHT_BY)
def test_bug_in_sqlite_plugin_is_found(outcomes: Outcomes, name: str) -> None:
    assert outcomes[name, SQLITE_CAUGHT_BY[name]] == {"failure"}


def test_the_class_of_the_document_runs_it_and_what_need_not_be_passed_is_named_with_the_reason(
    pytester: pytest.Pytester,
) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "storage_plugins.md").read_text(), re.DOTALL)
    (example,) = [each for each in examples if "(StorageContract)" in each]
    pytester.makepyfile(
        test_acme=example,
        kestrel_acme="""
            from kestrel.storage.memory import MemoryStorage, MemoryStorageFactory as AcmeStorageFactory

            def AcmeStorage(folder, clock, in_thread):
                return MemoryStorage()
        """,
    )
    result = pytester.runpytest_inprocess("-p", "no:twisted", "-rs", "-k", "not history")
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["passed"] > 50
    reasons = ["capability 'ranges'", "hook 'has_window'", "hook 'refuse_puts'"]
    result.stdout.fnmatch_lines_random([f"SKIPPED *: needs {reason}" for reason in reasons])


def test_classes_of_the_document_run_the_suites_on_sqlite(pytester: pytest.Pytester) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "storage_plugins.md").read_text(), re.DOTALL)
    (example,) = [each for each in examples if "OnFaultyDatabase" in each]
    pytester.makepyfile(test_acme=example)
    result = pytester.runpytest_inprocess("-p", "no:twisted", "-rs", "-k", "batch and not failed_sync")
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["passed"] > 30
    result.stdout.fnmatch_lines_random(["SKIPPED *: needs hook 'impossible'"])


def test_a_class_says_what_it_leaves_out() -> None:
    class OfMemory(StorageContract):
        factory = MemoryStorageFactory()

        def make(self, folder: Path, clock: Clock, in_thread: InThread) -> MemoryStorage:
            return MemoryStorage()

    assert OfMemory.left_out["test_all_items_can_be_released"] == "needs capability 'ranges'"
    assert OfMemory.left_out["test_fill_loads_the_head"] == "needs hook 'has_window'"
    assert OfMemory.left_out[TEST_OF_A_DISK] == "needs capability 'durable'"
    assert "test_items_are_taken_in_the_order_of_their_puts" not in OfMemory.left_out


def test_a_durable_backend_without_a_faulty_disk_is_told_which_base_class_opens_its_tests() -> None:
    class WithoutDisk(StorageContract):
        factory = LinesStorageFactory()

        def make(self, folder: Path, clock: Clock, in_thread: InThread) -> LinesStorage:
            return LinesStorage(os.fsencode(folder), in_thread, MemoryLimit())

    assert WithoutDisk.left_out[TEST_OF_A_DISK] == "needs the base class OnFaultyDisk"


def test_a_class_that_lacks_its_factory_or_its_make_is_an_error_and_not_left_out_in_silence() -> None:
    with pytest.raises(TypeError, match=r"^TestAcme does not define make, which returns a storage: no test of"):
        type("TestAcme", (StorageContract,), {"factory": MemoryStorageFactory()})
    with pytest.raises(TypeError, match=r"^TestAcme does not define factory, the backend's IStorageFactory: no"):
        type("TestAcme", (StorageContract,), {"make": lambda self, folder, clock, in_thread: MemoryStorage()})

    with pytest.raises(TypeError, match=r"^TestAcme does not define make_database, which returns an IDatabase: no"):
        type("TestAcme", (OnFaultyDatabase, StorageContract), {"factory": MemoryStorageFactory()})


@pytest.mark.parametrize("mixed_in", [OnFaultyDisk, OnFaultyDatabase])
def test_a_base_class_that_is_named_too_late_is_an_error_and_not_without_effect(mixed_in: type) -> None:
    with pytest.raises(TypeError, match=rf"^TestAcme names {mixed_in.__name__} after StorageContract: name it before"):
        type("TestAcme", (StorageContract, mixed_in), {})


@pytest.mark.parametrize("mixed_in", [OnFaultyDisk, OnFaultyDatabase])
def test_a_class_that_has_neither_is_a_base_of_others(mixed_in: type) -> None:
    base: Any = type("Base", (mixed_in, StorageContract), {})
    assert base.left_out == {}


def test_a_class_of_a_database_says_what_it_leaves_out() -> None:
    class OfMemory(DatabaseContract):
        def make_database(self, folder: Path, in_thread: InThread) -> MemoryDatabase:
            return MemoryDatabase(MemoryTables(), in_thread)

    hooks = ("lose_hold", "impossible", "fill_database", "is_embedded")
    assert set(OfMemory.left_out.values()) == {f"needs hook {hook!r}" for hook in hooks}
    assert OfMemory.left_out["test_closing_a_replaced_owner_releases_nothing"] == "needs hook 'lose_hold'"


def test_a_storage_that_does_nothing_on_the_faulty_disk_is_told_so(tmp_path: Path) -> None:
    class Forgetful(OnFaultyDisk, StorageContract):
        factory = LinesStorageFactory()

        def make(self, folder: Path, clock: Clock, in_thread: InThread) -> LinesStorage:
            return LinesStorage(os.fsencode(folder), in_thread, MemoryLimit())

    backend = Forgetful()
    subject = StorageUnderTest(backend, tmp_path / "queues")
    with pytest.raises(AssertionError, match=r"the storage did not use self\.disk: make\(\) must pass it"):
        begin(subject)
    with pytest.raises(AssertionError, match=r"the storage did not use self\.disk"):
        backend.refuse_puts(subject)
    subject.end()


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (ENTRY._replace(data=b"b"), "  item 1 is data=b'b' add_ms=5 expiry_ms=0 errors=0"),
        (ENTRY._replace(add_ms=6), "  item 1 is data=b'a' add_ms=6 expiry_ms=0 errors=0"),
        (ENTRY._replace(expiry_ms=7), "  item 1 is data=b'a' add_ms=5 expiry_ms=7 errors=0"),
        (ENTRY._replace(errors=1), "  item 1 is data=b'a' add_ms=5 expiry_ms=0 errors=1"),
        (
            ENTRY._replace(data=b"x" * 50),
            f"  item 1 is data={b'x' * 40!r}... (50 bytes, crc32 ac628a03) add_ms=5 expiry_ms=0 errors=0",
        ),
    ],
)
def test_whatever_differs_in_an_item_is_seen_in_the_message(found: ModelItem, line: str) -> None:
    said = differences([ENTRY, found], [ENTRY, ENTRY])
    assert said.splitlines() == [
        "the expected state differs from the 2 items that were found:",
        line,
        "    should be data=b'a' add_ms=5 expiry_ms=0 errors=0",
    ]


def test_of_several_states_that_may_be_the_nearest_is_compared() -> None:
    said = differences([ENTRY, ENTRY], [], [ENTRY])
    assert said.splitlines() == [
        "the nearest of 2 possible states differs from the 2 items that were found:",
        "  item 1 is data=b'a' add_ms=5 expiry_ms=0 errors=0",
        "    should be not there",
    ]


def test_a_need_of_a_class_is_one_of_each_of_its_tests() -> None:
    @requires("first")
    class Tests:
        @requires("second")
        def test_both(self) -> None: ...

        def test_one(self) -> None: ...

        def helper(self) -> None: ...

    assert (Tests.test_both.needs, Tests.test_one.needs) == (("second", "first"), ("first",))
    assert not hasattr(Tests.helper, "needs")


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_without_the_test_tools_it_is_said_how_to_get_them(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import kestrel.testing.contract"
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.stderr.splitlines()[-1].endswith("pip install 'kestrel-mq[test]'")

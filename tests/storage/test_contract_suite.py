"""The contract suite finds bugs, passes correct backends, and lists the tests that it skips."""

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
from tests.once import made_once
from tests.storage import broken_databases, broken_sqlite, broken_storages

ROOT = Path(__file__).parents[2]

BUGS = [
    pytest.param(module, f"Test{bug.__name__}", test, marks=marks, id=f"{bug.__name__}-{test}")
    for module, marks in ((broken_storages, ()), (broken_databases, ()), (broken_sqlite, pytest.mark.needs("gcc")))
    for bug, tests in module.FOUND_BY.items()
    for test in tests
]
"""The module and the test class of each bug, with a test that has to find it."""

CRASH_TEST = "test_acknowledged_changes_survive_a_crash_at_each_operation"

ENTRY = ModelItem(b"a", 5, 0)

Outcomes = Mapping[tuple[str, str], set[str]]
"""The results of each test for all its parameters, by class and name."""


def run_suite(folder: Path) -> None:
    """Run all tests of the correct storage and database, and the tests that have to find a bug."""
    tests = [(broken_storages, "TestUnbroken"), (broken_databases, "TestUnbrokenDatabase")]
    tests += [(each.values[0], f"{each.values[1]}::{each.values[2]}") for each in BUGS]
    names = [f"{module.__file__}::{test}" for module, test in tests]
    arguments = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}", f"--junitxml={folder / 'report.xml'}"]
    command = [sys.executable, "-m", "pytest", *arguments, *names]
    subprocess.run(command, cwd=ROOT, check=False, capture_output=True, timeout=LONG_S)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Return the results of `run_suite`."""
    folder = made_once(tmp_path_factory, "contract-suite", run_suite)
    found: dict[tuple[str, str], set[str]] = {}
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        results = {_result(child) for child in case if child.tag in {"failure", "error", "skipped"}} or {"passed"}
        key = case.attrib["classname"].rpartition(".")[2], case.attrib["name"].partition("[")[0]
        found.setdefault(key, set()).update(results)
    return found


def _result(element: ElementTree.Element) -> str:
    """Return the result of a test that did not pass: "failure" for a failed assertion, "raised" for an exception."""
    is_assertion = element.attrib["message"].startswith(("assert ", "AssertionError", "Failed: DID NOT RAISE"))
    return element.tag if element.tag != "failure" or is_assertion else "raised"


def results_of(class_name: str, outcomes: Outcomes) -> dict[str, set[str]]:
    return {test: results for (each, test), results in outcomes.items() if each == class_name}


def test_correct_storage_passes_all_supported_tests(outcomes: Outcomes) -> None:
    left_out = broken_storages.TestUnbroken.left_out
    results = results_of("TestUnbroken", outcomes)
    assert len(results) > 100
    assert results == {name: {"skipped" if name in left_out else "passed"} for name in results}
    assert results.keys() >= left_out.keys()
    assert set(left_out.values()) == {
        "needs capability 'errors_kept'",
        "needs capability 'order_kept'",
        "needs capability 'ranges'",
        "needs capability 'shared_fanout'",
        "needs hook 'has_window'",
        "needs the base class OnFaultyDatabase",
    }


def test_correct_database_passes_all_supported_tests(outcomes: Outcomes) -> None:
    left_out = broken_databases.TestUnbrokenDatabase.left_out
    results = results_of("TestUnbrokenDatabase", outcomes)
    assert len(results) > 40
    assert results == {name: {"skipped" if name in left_out else "passed"} for name in results}
    assert set(left_out.values()) == {"needs hook 'is_embedded'"}


@pytest.mark.parametrize(("module", "name", "test"), BUGS)
def test_bug_is_found(outcomes: Outcomes, module: object, name: str, test: str) -> None:
    assert {"failure"} <= outcomes[name, test] <= {"failure", "passed"}
    if module is broken_storages:
        assert outcomes["TestUnbroken", test] == {"passed"}


def run_document_example(pytester: pytest.Pytester, base: str, selection: str, **modules: str) -> pytest.RunResult:
    """Run the test module of docs/storage_plugins.md that mentions `base`."""
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "storage_plugins.md").read_text(), re.DOTALL)
    (example,) = [each for each in examples if base in each]
    pytester.makepyfile(test_acme=example, **modules)
    result = pytester.runpytest_inprocess("-p", "no:twisted", "-rs", "-k", selection)
    assert result.ret == pytest.ExitCode.OK
    return result


def test_storage_example_of_the_document_runs_the_suite(pytester: pytest.Pytester) -> None:
    storage = """
        from kestrel.storage.memory import MemoryStorage, MemoryStorageFactory as AcmeStorageFactory

        def AcmeStorage(folder, clock, in_thread):
            return MemoryStorage()
    """
    result = run_document_example(pytester, "(StorageContract)", "not history", kestrel_acme=storage)
    assert result.parseoutcomes()["passed"] > 50
    reasons = ["capability 'ranges'", "hook 'has_window'", "hook 'refuse_puts'"]
    result.stdout.fnmatch_lines_random([f"SKIPPED *: needs {reason}" for reason in reasons])


def test_database_example_of_the_document_runs_the_suites(pytester: pytest.Pytester) -> None:
    result = run_document_example(pytester, "OnFaultyDatabase", "(batch or failed_commit) and not failed_sync")
    assert result.parseoutcomes()["passed"] > 30
    result.stdout.fnmatch_lines_random(["SKIPPED *: needs hook 'impossible'"])


class OnExampleStorage(StorageContract):
    factory = LinesStorageFactory()

    def make(self, folder: Path, clock: Clock, in_thread: InThread) -> LinesStorage:
        return LinesStorage(os.fsencode(folder), in_thread, MemoryLimit())


def test_class_lists_the_tests_that_it_leaves_out() -> None:
    class OnMemoryStorage(StorageContract):
        factory = MemoryStorageFactory()

        def make(self, folder: Path, clock: Clock, in_thread: InThread) -> MemoryStorage:
            return MemoryStorage()

    assert OnMemoryStorage.left_out["test_all_items_can_be_released"] == "needs capability 'ranges'"
    assert OnMemoryStorage.left_out["test_fill_loads_the_head"] == "needs hook 'has_window'"
    assert OnMemoryStorage.left_out[CRASH_TEST] == "needs capability 'durable'"
    assert "test_items_are_taken_in_the_order_of_their_puts" not in OnMemoryStorage.left_out


def test_durable_backend_without_faulty_disk_lacks_a_base_class() -> None:
    assert OnExampleStorage.left_out[CRASH_TEST] == "needs the base class OnFaultyDisk"


@pytest.mark.parametrize(
    ("bases", "attributes", "missing"),
    [
        ((StorageContract,), {"factory": MemoryStorageFactory()}, "make, which returns a storage: no test of"),
        ((StorageContract,), {"make": lambda *_: MemoryStorage()}, "factory, the backend's IStorageFactory: no"),
        (
            (OnFaultyDatabase, StorageContract),
            {"factory": MemoryStorageFactory()},
            "make_database, which returns an IDatabase: no",
        ),
    ],
)
def test_missing_hook_is_an_error(bases: tuple[type, ...], attributes: dict[str, Any], missing: str) -> None:
    with pytest.raises(TypeError, match=rf"^TestAcme does not define {missing}"):
        type("TestAcme", bases, attributes)


@pytest.mark.parametrize("mixin", [OnFaultyDisk, OnFaultyDatabase])
def test_mixin_after_the_suite_is_an_error(mixin: type) -> None:
    with pytest.raises(TypeError, match=rf"^TestAcme names {mixin.__name__} after StorageContract: name it before"):
        type("TestAcme", (StorageContract, mixin), {})


@pytest.mark.parametrize("mixin", [OnFaultyDisk, OnFaultyDatabase])
def test_class_without_hooks_can_be_a_base_class(mixin: type) -> None:
    base: Any = type("Base", (mixin, StorageContract), {})
    assert base.left_out == {}


def test_database_class_lists_the_tests_that_it_leaves_out() -> None:
    class OnMemoryDatabase(DatabaseContract):
        def make_database(self, folder: Path, in_thread: InThread) -> MemoryDatabase:
            return MemoryDatabase(MemoryTables(), in_thread)

    hooks = ("lose_hold", "impossible", "fill_database", "is_embedded")
    assert set(OnMemoryDatabase.left_out.values()) == {f"needs hook {hook!r}" for hook in hooks}
    assert OnMemoryDatabase.left_out["test_closing_a_replaced_owner_releases_nothing"] == "needs hook 'lose_hold'"


def test_storage_that_ignores_the_faulty_disk_is_reported(tmp_path: Path) -> None:
    class IgnoresDisk(OnFaultyDisk, OnExampleStorage):
        pass

    backend = IgnoresDisk()
    subject = StorageUnderTest(backend, tmp_path / "queues")
    with pytest.raises(AssertionError, match=r"the storage did not use self\.disk: make\(\) must pass it"):
        begin(subject)
    with pytest.raises(AssertionError, match=r"the storage did not use self\.disk"):
        backend.refuse_puts(subject)
    subject.end()


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (ENTRY._replace(data=b"b"), "data=b'b' add_ms=5 expiry_ms=0 errors=0"),
        (ENTRY._replace(add_ms=6), "data=b'a' add_ms=6 expiry_ms=0 errors=0"),
        (ENTRY._replace(expiry_ms=7), "data=b'a' add_ms=5 expiry_ms=7 errors=0"),
        (ENTRY._replace(errors=1), "data=b'a' add_ms=5 expiry_ms=0 errors=1"),
        (
            ENTRY._replace(data=b"x" * 50),
            f"data={b'x' * 40!r}... (50 bytes, crc32 ac628a03) add_ms=5 expiry_ms=0 errors=0",
        ),
    ],
)
def test_message_shows_the_field_that_differs(found: ModelItem, line: str) -> None:
    message = differences([ENTRY, found], [ENTRY, ENTRY])
    assert message.splitlines() == [
        "the expected state differs from the 2 items that were found:",
        f"  item 1 is {line}",
        "    should be data=b'a' add_ms=5 expiry_ms=0 errors=0",
    ]


def test_message_compares_with_the_nearest_possible_state() -> None:
    message = differences([ENTRY, ENTRY], [], [ENTRY])
    assert message.splitlines() == [
        "the nearest of 2 possible states differs from the 2 items that were found:",
        "  item 1 is data=b'a' add_ms=5 expiry_ms=0 errors=0",
        "    should be not there",
    ]


def test_tests_inherit_the_needs_of_their_class() -> None:
    @requires("first")
    class Tests:
        @requires("second")
        def test_both(self) -> None: ...

        def test_one(self) -> None: ...

        def helper(self) -> None: ...

    assert (Tests.test_both.needs, Tests.test_one.needs) == (("second", "first"), ("first",))
    assert not hasattr(Tests.helper, "needs")


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_import_without_test_tools_names_the_extra_to_install(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import kestrel.testing.contract"
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.stderr.splitlines()[-1].endswith("pip install 'kestrel-mq[test]'")

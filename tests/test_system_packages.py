"""A test whose system package is missing is left out, and the run says so last."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests import system_packages
from tests.child import PATIENCE_S
from tests.system_packages import SYSTEM_PACKAGES, SystemPackage

RunTests = Callable[..., pytest.RunResult]


@pytest.fixture
def run_tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RunTests:
    """Runs the source of a test module in a pytest of its own, which knows "here", "absent" and "gone"."""
    monkeypatch.delenv("KESTREL_REQUIRE_ALL", raising=False)
    monkeypatch.setitem(SYSTEM_PACKAGES, "here", SystemPackage(lambda: True, ("here-deb",)))
    monkeypatch.setitem(SYSTEM_PACKAGES, "absent", SystemPackage(lambda: False, ("absent-deb", "common-deb")))
    monkeypatch.setitem(SYSTEM_PACKAGES, "gone", SystemPackage(lambda: False, ("gone-deb", "common-deb")))

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile("import pytest\nneeds = pytest.mark.needs\n" + source)
        # pytest-twisted would stop the reactor that it shares with this run; hypothesis loads slowly.
        apart = ["-p", "no:twisted", "-p", "no:hypothesispytest"]
        return pytester.runpytest_inprocess(*apart, "-p", "tests.conftest", "--strict-markers", *arguments)

    return run


def test_a_test_runs_when_its_package_is_here(run_tests: RunTests) -> None:
    result = run_tests("@needs('here')\ndef test_it(): pass")
    result.assert_outcomes(passed=1)
    assert result.outlines[-1] == "left out for want of a system package: nothing"


def test_a_test_without_its_package_is_left_out_and_named_in_the_last_lines(run_tests: RunTests) -> None:
    result = run_tests("@needs('absent')\ndef test_it(): assert False\ndef test_other(): pass")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.OK
    assert result.outlines[-2:] == [
        "left out: 1 test, for want of absent (1)",
        "to run what was left out: apt-get install absent-deb common-deb",
    ]


def test_each_test_counts_once_and_each_debian_package_is_named_once(run_tests: RunTests) -> None:
    result = run_tests("@needs('gone', 'absent')\ndef test_a(): pass\n@needs('gone')\ndef test_b(): pass")
    assert result.outlines[-2:] == [
        "left out: 2 tests, for want of absent (1), gone (2)",
        "to run what was left out: apt-get install absent-deb common-deb gone-deb",
    ]


def test_a_module_names_what_all_its_tests_need(run_tests: RunTests) -> None:
    result = run_tests("pytestmark = needs('gone')\ndef test_a(): pass\ndef test_b(): pass")
    result.assert_outcomes(skipped=2)


def test_a_required_run_fails_for_what_it_would_leave_out(
    run_tests: RunTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KESTREL_REQUIRE_ALL", "1")
    result = run_tests("@needs('gone')\ndef test_it(): pass\ndef test_other(): pass")
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.outlines[-2:] == [
        "left out: 1 test, for want of gone (1)",
        "to run what was left out: apt-get install gone-deb common-deb",
    ]


@pytest.mark.parametrize(
    "skip",
    [
        "def test_it(): pytest.skip('tired')",
        "@pytest.mark.skip\ndef test_it(): pass",
        "pytest.skip('whole module', allow_module_level=True)",
    ],
)
def test_a_required_run_fails_for_a_skip_that_names_no_package(
    skip: str, run_tests: RunTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KESTREL_REQUIRE_ALL", "1")
    result = run_tests(f"def test_other(): pass\n{skip}")
    assert result.ret != pytest.ExitCode.OK
    assert result.outlines[-1] == "skipped for reasons of their own: 1 test (-rs lists them)"


def test_what_other_processes_leave_out_is_told_and_counts_as_well(
    run_tests: RunTests, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SYSTEM_PACKAGES, "away", SYSTEM_PACKAGES["absent"])  # it is taken out again with this
    pytester.makeconftest(
        "from tests.system_packages import SYSTEM_PACKAGES, SystemPackage\n"
        "SYSTEM_PACKAGES['away'] = SystemPackage(lambda: False, ('away-deb',))\n"
    )
    source = "@needs('away')\ndef test_a(): pass\ndef test_b(): pass\ndef test_c(): pytest.skip('tired')"
    result = run_tests(source, "-n", "1")
    result.assert_outcomes(passed=1, skipped=2)
    assert result.ret == pytest.ExitCode.OK
    assert result.outlines[-3:] == [
        "skipped for reasons of their own: 1 test (-rs lists them)",
        "left out: 1 test, for want of away (1)",
        "to run what was left out: apt-get install away-deb",
    ]
    monkeypatch.setenv("KESTREL_REQUIRE_ALL", "1")
    assert run_tests(source, "-n", "1", "-k", "not test_a").ret == pytest.ExitCode.TESTS_FAILED


def test_an_expected_failure_is_not_left_out(run_tests: RunTests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KESTREL_REQUIRE_ALL", "1")
    result = run_tests("@pytest.mark.xfail\ndef test_it(): assert False")
    assert result.ret == pytest.ExitCode.OK
    assert result.outlines[-1] == "left out for want of a system package: nothing"


def test_a_name_that_the_table_does_not_know_stops_the_run(run_tests: RunTests) -> None:
    result = run_tests("@needs('memcaslapp')\ndef test_it(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*needs ?'memcaslapp'?: not in tests/system_packages.py"])


def test_the_script_prints_the_debian_packages_of_what_is_missing() -> None:
    printed = subprocess.run(
        [sys.executable, system_packages.__file__], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    ).stdout.split()
    assert printed == system_packages.debian_packages(system_packages.missing(SYSTEM_PACKAGES))


@pytest.mark.needs(*SYSTEM_PACKAGES)
def test_all_that_the_table_names_can_be_installed() -> None:
    """Runs where the install line was followed; an entry that names a wrong Debian package shows there."""
    assert not system_packages.missing(SYSTEM_PACKAGES)


@pytest.mark.parametrize("reason", ["needs capability 'ranges'", "needs the base class OnFaultyDisk"])
def test_what_a_storage_need_not_promise_is_counted_apart_and_fails_no_complete_run(
    run_tests: RunTests, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setenv("KESTREL_REQUIRE_ALL", "1")
    result = run_tests(f'@pytest.mark.skip(reason="{reason}")\ndef test_a(): pass\ndef test_b(): pass')
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.OK
    assert result.outlines[-2:] == [
        "of what storages need not promise: 1 test skipped (-rs says which)",
        "left out for want of a system package: nothing",
    ]


def test_a_reason_that_is_only_like_those_fails_a_complete_run(
    run_tests: RunTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KESTREL_REQUIRE_ALL", "1")
    result = run_tests("@pytest.mark.skip(reason=\"needs capability 'ranges', one day\")\ndef test_a(): pass")
    assert result.ret == pytest.ExitCode.TESTS_FAILED

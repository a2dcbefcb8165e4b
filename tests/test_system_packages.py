"""Tests with missing system packages are skipped, and a summary of skips is printed."""

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
    """Return a function that runs a test module in a separate pytest with the packages "here", "absent" and "gone"."""
    monkeypatch.delenv("KESTREL_REQUIRE_ALL", raising=False)
    monkeypatch.setitem(SYSTEM_PACKAGES, "here", SystemPackage(lambda: True, ("here-deb",)))
    monkeypatch.setitem(SYSTEM_PACKAGES, "absent", SystemPackage(lambda: False, ("absent-deb", "common-deb")))
    monkeypatch.setitem(SYSTEM_PACKAGES, "gone", SystemPackage(lambda: False, ("gone-deb", "common-deb")))

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile("import pytest\nneeds = pytest.mark.needs\n" + source)
        # pytest-twisted would stop the shared reactor. Hypothesis loads slowly.
        apart = ["-p", "no:twisted", "-p", "no:hypothesispytest"]
        return pytester.runpytest_inprocess(*apart, "-p", "tests.conftest", "--strict-markers", *arguments)

    return run


def test_test_with_installed_package_runs(run_tests: RunTests) -> None:
    result = run_tests("@needs('here')\ndef test_it(): pass")
    result.assert_outcomes(passed=1)
    assert result.outlines[-1] == "missing system packages: no test skipped"


def test_test_without_its_package_is_skipped_and_reported(run_tests: RunTests) -> None:
    result = run_tests("@needs('absent')\ndef test_it(): assert False\ndef test_other(): pass")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.OK
    assert result.outlines[-2:] == [
        "missing system packages: 1 test skipped: absent (1)",
        "to run them: apt-get install absent-deb common-deb",
    ]


def test_tests_and_debian_packages_are_counted_once(run_tests: RunTests) -> None:
    result = run_tests("@needs('gone', 'absent')\ndef test_a(): pass\n@needs('gone')\ndef test_b(): pass")
    assert result.outlines[-2:] == [
        "missing system packages: 2 tests skipped: absent (1), gone (2)",
        "to run them: apt-get install absent-deb common-deb gone-deb",
    ]


def test_needs_of_a_module_apply_to_all_its_tests(run_tests: RunTests) -> None:
    result = run_tests("pytestmark = needs('gone')\ndef test_a(): pass\ndef test_b(): pass")
    result.assert_outcomes(skipped=2)


def test_required_run_fails_for_a_missing_package(
    run_tests: RunTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KESTREL_REQUIRE_ALL", "1")
    result = run_tests("@needs('gone')\ndef test_it(): pass\ndef test_other(): pass")
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.outlines[-2:] == [
        "missing system packages: 1 test skipped: gone (1)",
        "to run them: apt-get install gone-deb common-deb",
    ]


@pytest.mark.parametrize(
    "skip",
    [
        "def test_it(): pytest.skip('tired')",
        "@pytest.mark.skip\ndef test_it(): pass",
        "pytest.skip('whole module', allow_module_level=True)",
    ],
)
def test_required_run_fails_for_another_skip(
    skip: str, run_tests: RunTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KESTREL_REQUIRE_ALL", "1")
    result = run_tests(f"def test_other(): pass\n{skip}")
    assert result.ret != pytest.ExitCode.OK
    assert result.outlines[-1] == "other reasons: 1 test skipped (-rs lists them)"


def test_skips_in_worker_processes_are_reported(
    run_tests: RunTests, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SYSTEM_PACKAGES, "away", SYSTEM_PACKAGES["absent"])  # removed again with monkeypatch
    pytester.makeconftest(
        "from tests.system_packages import SYSTEM_PACKAGES, SystemPackage\n"
        "SYSTEM_PACKAGES['away'] = SystemPackage(lambda: False, ('away-deb',))\n"
    )
    source = "@needs('away')\ndef test_a(): pass\ndef test_b(): pass\ndef test_c(): pytest.skip('tired')"
    result = run_tests(source, "-n", "1")
    result.assert_outcomes(passed=1, skipped=2)
    assert result.ret == pytest.ExitCode.OK
    assert result.outlines[-3:] == [
        "other reasons: 1 test skipped (-rs lists them)",
        "missing system packages: 1 test skipped: away (1)",
        "to run them: apt-get install away-deb",
    ]
    monkeypatch.setenv("KESTREL_REQUIRE_ALL", "1")
    assert run_tests(source, "-n", "1", "-k", "not test_a").ret == pytest.ExitCode.TESTS_FAILED


def test_expected_failure_is_not_a_skip(run_tests: RunTests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KESTREL_REQUIRE_ALL", "1")
    result = run_tests("@pytest.mark.xfail\ndef test_it(): assert False")
    assert result.ret == pytest.ExitCode.OK
    assert result.outlines[-1] == "missing system packages: no test skipped"


def test_unknown_name_stops_the_run(run_tests: RunTests) -> None:
    result = run_tests("@needs('memcaslapp')\ndef test_it(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*needs ?'memcaslapp'?, which tests/system_packages.py does not list"])


def test_script_prints_missing_debian_packages() -> None:
    printed = subprocess.run(
        [sys.executable, system_packages.__file__], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    ).stdout.split()
    assert printed == system_packages.debian_packages(system_packages.missing(SYSTEM_PACKAGES))


@pytest.mark.needs(*SYSTEM_PACKAGES)
def test_all_packages_are_installed() -> None:
    """Check after an installation that no entry lists a wrong Debian package."""
    assert not system_packages.missing(SYSTEM_PACKAGES)


@pytest.mark.parametrize("reason", ["needs capability 'ranges'", "needs the base class OnFaultyDisk"])
def test_required_run_allows_skips_of_optional_capabilities(
    run_tests: RunTests, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setenv("KESTREL_REQUIRE_ALL", "1")
    result = run_tests(f'@pytest.mark.skip(reason="{reason}")\ndef test_a(): pass\ndef test_b(): pass')
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.OK
    assert result.outlines[-2:] == [
        "optional capabilities of storages: 1 test skipped (-rs lists them)",
        "missing system packages: no test skipped",
    ]


def test_required_run_fails_for_a_similar_reason(
    run_tests: RunTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KESTREL_REQUIRE_ALL", "1")
    result = run_tests("@pytest.mark.skip(reason=\"needs capability 'ranges', one day\")\ndef test_a(): pass")
    assert result.ret == pytest.ExitCode.TESTS_FAILED

"""Skips tests with the marker `needs` whose system packages are missing, and prints a summary of all skips.

With KESTREL_REQUIRE_ALL=1 in the environment, these tests and any other skip fail. Only tests of optional capabilities
in the storage contract may still be skipped, because no package could make a backend support them.

The header of a run shows which build is tested (`kestrel.compiled`). With KESTREL_EXPECT_BUILD=compiled or =pure in the
environment, a run with another build ends at once.
"""

import gc
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from kestrel import compiled
from tests import system_packages
from tests.client.certificates import Authority
from tests.conversations import summary
from tests.sample import examples
from tests.server.running import Processes
from tests.spark import java

MISSING_PACKAGE = "missing package"
"""Property of a test report with a missing package. Properties are passed between processes."""

OPTIONAL_SKIP = re.compile(
    r"Skipped: needs ((capability|hook) '\w+'|the base class OnFaulty(Disk|Database)( or OnFaultyDatabase)?)"
)
"""Skip reasons of the storage contract (`kestrel.testing.contract.requirements`)."""


# With the second compiler of Java, the Spark tests take twice as long.
os.environ.setdefault("SPARK_SUBMIT_OPTS", java.OPTIONS)

# The time of an example depends on the load of the machine.
settings.register_profile("kestrel", deadline=None, max_examples=examples(100))
settings.load_profile("kestrel")


class SkipSummary:
    """Counts skipped tests, and prints the counts after pytest's summary."""

    def __init__(self, *, is_everything_required: bool) -> None:
        self.is_everything_required = is_everything_required
        self.tests_by_package: Counter[str] = Counter()
        self.test_count = 0
        self.optional_count = 0
        self.other_skip_count = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            packages = [value for name, value in report.user_properties if name == MISSING_PACKAGE]
            self.tests_by_package.update(str(package) for package in packages)
            self.test_count += bool(packages)
            if packages:
                return
        if report.skipped and not hasattr(report, "wasxfail"):
            is_optional = isinstance(report.longrepr, tuple) and OPTIONAL_SKIP.fullmatch(report.longrepr[2])
            self.optional_count += bool(is_optional)
            self.other_skip_count += not is_optional

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.other_skip_count += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        is_passing = session.exitstatus == pytest.ExitCode.OK
        if self.is_everything_required and is_passing and self.other_skip_count:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            for line in self.closing_lines():
                terminal.write_line(line)

    def closing_lines(self) -> Iterator[str]:
        """Yield the lines of the summary, with the command that installs missing packages."""
        if self.optional_count:
            yield f"optional capabilities of storages: {tests(self.optional_count)} skipped (-rs lists them)"
        if self.other_skip_count:
            yield f"other reasons: {tests(self.other_skip_count)} skipped (-rs lists them)"
        if self.test_count:
            packages = sorted(self.tests_by_package)
            counts = ", ".join(f"{package} ({self.tests_by_package[package]})" for package in packages)
            yield f"missing system packages: {tests(self.test_count)} skipped: {counts}"
            yield f"to run them: {system_packages.install_line(packages)}"
        elif not self.other_skip_count:
            yield "missing system packages: no test skipped"


def tests(count: int) -> str:
    """Return a number of tests as text."""
    return "1 test" if count == 1 else f"{count} tests"


def pytest_report_header() -> str:
    because = f" ({compiled.REASON})" if compiled.REASON else ""
    return f"kestrel: {compiled.BUILD}{because}"


def check_build(expected: str | None) -> None:
    """End the run if its build is not the expected one."""
    if expected not in (None, compiled.BUILD):
        because = f", because {compiled.REASON}" if compiled.REASON else ""
        raise pytest.UsageError(f"KESTREL_EXPECT_BUILD is {expected}, but the build is {compiled.BUILD}{because}")


def pytest_configure(config: pytest.Config) -> None:
    check_build(os.environ.get("KESTREL_EXPECT_BUILD"))
    Processes.may_fork = True
    config.addinivalue_line("markers", "needs(name, ...): names in tests/system_packages.py that the test needs")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores SIGINT in background jobs. Child processes would inherit this.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(summary, "recorded_conversations")
    is_everything_required = os.environ.get("KESTREL_REQUIRE_ALL") == "1"
    config.pluginmanager.register(SkipSummary(is_everything_required=is_everything_required), "skip_summary")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze tests and modules, which are never garbage, so that later collections skip them."""
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def needed_by(item: pytest.Item) -> list[str]:
    """Return the names in the `needs` markers of a test, each once."""
    return list(dict.fromkeys(name for marker in item.iter_markers("needs") for name in marker.args))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if unknown := [name for name in needed_by(item) if name not in system_packages.SYSTEM_PACKAGES]:
            raise pytest.UsageError(f"{item.nodeid} needs {unknown}, which tests/system_packages.py does not list")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    packages = system_packages.missing(needed_by(item))
    if not packages:
        return
    item.user_properties += [(MISSING_PACKAGE, package) for package in packages]
    reason = f"needs {', '.join(packages)}: {system_packages.install_line(packages)}"
    if os.environ.get("KESTREL_REQUIRE_ALL") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return an authority that signs certificates in a scratch folder."""
    return Authority(tmp_path)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Start servers in a scratch folder, and end them after the test."""
    with Processes(tmp_path) as processes:
        yield processes

"""The marker `needs`: a test is left out where a system package is missing, and the run ends by saying so.

With KESTREL_REQUIRE_ALL=1 in the environment whatever would be left out fails, any other skip included, but for the
tests of the storage contract that a backend need not pass: nothing that can be installed would make it promise more.

The first lines say which build runs (`kestrel.compiled`). With KESTREL_EXPECT_BUILD=compiled or =pure in the
environment the run ends at once where it is the other one.
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

LEFT_OUT_FOR = "left out for"
"""The property of a test's report that names a missing package; properties survive a split over processes."""

NOT_PROMISED = re.compile(r"Skipped: needs ((capability|hook) '\w+'|the base class OnFaulty(Disk|Database))")
"""Why the storage contract leaves a test out (`kestrel.testing.contract.requirements`)."""


# How long an example takes is a matter of what else the machine does.
settings.register_profile("kestrel", deadline=None, max_examples=examples(100))
settings.load_profile("kestrel")


class LeftOut:
    """Counts what a run did not run, and says it below pytest's own closing line."""

    def __init__(self, *, is_everything_required: bool) -> None:
        self.is_everything_required = is_everything_required
        self.tests_by_package: Counter[str] = Counter()
        self.test_count = 0
        self.not_promised_count = 0
        self.other_skip_count = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            packages = [value for name, value in report.user_properties if name == LEFT_OUT_FOR]
            self.tests_by_package.update(str(package) for package in packages)
            self.test_count += bool(packages)
            if packages:
                return
        if report.skipped and not hasattr(report, "wasxfail"):
            is_not_promised = isinstance(report.longrepr, tuple) and NOT_PROMISED.fullmatch(report.longrepr[2])
            self.not_promised_count += bool(is_not_promised)
            self.other_skip_count += not is_not_promised

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
        """What was left out, and how to get it."""
        if self.not_promised_count:
            yield f"of what storages need not promise: {tests(self.not_promised_count)} skipped (-rs says which)"
        if self.other_skip_count:
            yield f"skipped for reasons of their own: {tests(self.other_skip_count)} (-rs lists them)"
        if self.test_count:
            packages = sorted(self.tests_by_package)
            counts = ", ".join(f"{package} ({self.tests_by_package[package]})" for package in packages)
            yield f"left out: {tests(self.test_count)}, for want of {counts}"
            yield f"to run what was left out: {system_packages.install_line(packages)}"
        elif not self.other_skip_count:
            yield "left out for want of a system package: nothing"


def tests(count: int) -> str:
    """The count with its noun."""
    return "1 test" if count == 1 else f"{count} tests"


def pytest_report_header() -> str:
    because = f" ({compiled.REASON})" if compiled.REASON else ""
    return f"kestrel: {compiled.BUILD}{because}"


def check_build(expected: str | None) -> None:
    """End the run where another build runs than the one that is expected, if any is."""
    if expected not in (None, compiled.BUILD):
        because = f", because {compiled.REASON}" if compiled.REASON else ""
        raise pytest.UsageError(f"KESTREL_EXPECT_BUILD is {expected}, and what runs is {compiled.BUILD}{because}")


def pytest_configure(config: pytest.Config) -> None:
    check_build(os.environ.get("KESTREL_EXPECT_BUILD"))
    Processes.may_fork = True
    config.addinivalue_line("markers", "needs(name, ...): what the test needs, from tests/system_packages.py")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So it is in what a shell runs in the background, and would be in all that the tests start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(summary, "recorded_conversations")
    is_everything_required = os.environ.get("KESTREL_REQUIRE_ALL") == "1"
    config.pluginmanager.register(LeftOut(is_everything_required=is_everything_required), "left_out")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests and all modules are there to the end: a collection of garbage need not look at them."""
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def needed_by(item: pytest.Item) -> list[str]:
    """The names in the test's `needs` markers, each once."""
    return list(dict.fromkeys(name for marker in item.iter_markers("needs") for name in marker.args))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if unknown := [name for name in needed_by(item) if name not in system_packages.SYSTEM_PACKAGES]:
            raise pytest.UsageError(f"{item.nodeid} needs {unknown}: not in tests/system_packages.py")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    packages = system_packages.missing(needed_by(item))
    if not packages:
        return
    item.user_properties += [(LEFT_OUT_FOR, package) for package in packages]
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

"""No request may cause a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.logger import LogEvent, formatEvent, globalLogPublisher

from kestrel.admin import routes


@pytest.fixture(autouse=True)
def failures() -> Iterator[list[LogEvent]]:
    """The failures in the log. A test that expects one removes it from the list."""
    found: list[LogEvent] = []

    def observe(event: LogEvent) -> None:
        if "log_failure" in event:
            found.append(event)

    globalLogPublisher.addObserver(observe)
    yield found
    globalLogPublisher.removeObserver(observe)
    assert not [event["log_failure"].getTraceback() for event in found]


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder of pages, used instead of the dashboard's. Its parent has other files as well."""
    folder = tmp_path / "package" / "pages"
    (folder / "inner").mkdir(parents=True)
    (folder.parent / "site.py").write_text("secret = 1")
    (folder.parent / "secret.html").write_text("secret")
    (folder / "__init__.py").write_text("")
    (folder / "index.html").write_text("<title>queues</title>")
    (folder / "app.js").write_text("let a = 1")
    (folder / "inner" / "deep.css").write_text("p { color: red }")
    monkeypatch.setattr(routes, "files", lambda package: folder.parent)
    routes._all_files.cache_clear()
    yield folder
    routes._all_files.cache_clear()


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The lines of the log."""
    found: list[str] = []

    def observe(event: LogEvent) -> None:
        found.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    yield found
    globalLogPublisher.removeObserver(observe)

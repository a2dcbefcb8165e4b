"""Exceptions of the Spark integration. Their text says what failed and what to do."""

from __future__ import annotations

from kestrel.errors import KestrelError


class SourceFailed(KestrelError):
    """An option, path, column or server prevents reading or writing. The text says what to do."""


class BadJournal(KestrelError):
    """A damaged, incomplete or missing file in FAILFAST mode, or in a stream that would lose its rows for good."""

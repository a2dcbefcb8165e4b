"""What goes wrong on Spark, in sentences with the way out."""

from __future__ import annotations

from kestrel.errors import KestrelError


class SourceFailed(KestrelError):
    """Journals cannot be read as they were asked for. The text is a sentence with the way out."""


class BadJournal(KestrelError):
    """A file is not what it should be, and the mode is FAILFAST, or a stream would be without its rows for good."""

"""What the tests of the line protocols count."""

from __future__ import annotations

from typing import Any

import pytest

from kestrel.protocols import buffer as buffer_module


class LookedAt:
    """How many bytes of received ones were looked at or taken."""

    def __init__(self) -> None:
        self.bytes = 0


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> LookedAt:
    """Counts what is done with the bytes that arrive in pieces."""
    count = LookedAt()

    class CountingArray(bytearray):
        def find(self, wanted: Any, start: Any = 0, *end: Any) -> int:
            count.bytes += len(self) - (start or 0)
            return super().find(wanted, start, *end)

        def rfind(self, wanted: Any, start: Any = 0, *end: Any) -> int:
            # It follows a search of the same bytes, which asks the array for nothing that could be counted.
            count.bytes += 2 * (len(self) - (start or 0))
            return super().rfind(wanted, start, *end)

        def __getitem__(self, where: Any) -> Any:
            part = super().__getitem__(where)
            count.bytes += len(part) if isinstance(where, slice) else 1
            return part

        def endswith(self, *args: Any) -> bool:
            count.bytes += len(args[0])
            return super().endswith(*args)

    monkeypatch.setattr(buffer_module, "bytearray", CountingArray, raising=False)
    return count

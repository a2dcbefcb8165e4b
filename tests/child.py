"""A program that a test has started, which is over when the test is, also when it has failed."""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import AnyStr, Final

PATIENCE_S: Final = 60.0
"""How long its end may take. Only a failing test waits that long."""


class Child(subprocess.Popen[AnyStr]):
    """As Popen, whose own ``with`` waits for ever for a program that does not end."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for its end, and fail where it does not come. It is killed then, and where the test has failed."""
        try:
            if error is None:
                self.wait(PATIENCE_S)
        finally:
            self.kill()
            super().__exit__(kind, error, traceback)

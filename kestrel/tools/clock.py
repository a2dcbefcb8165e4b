"""Time as an argument, so that tests can pass their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Clock(NamedTuple):
    """A monotonic clock and a sleep function, both in seconds."""

    seconds: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep

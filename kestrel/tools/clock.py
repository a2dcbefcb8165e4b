"""The time, as an argument: a test hands in its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Clock(NamedTuple):
    """A clock that never goes back, and a way to let time go by. Both are in seconds."""

    seconds: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep

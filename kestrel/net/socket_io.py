"""Reads and writes of non-blocking sockets by descriptor. The compiled build has them in C (`socket_io.c`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

receive: Final[Callable[[int, int], bytes]] = os.read
"""Read once, up to a number of bytes. Raise OSError as `os.read` does."""

send: Final[Callable[[int, bytes], int]] = os.write
"""Write once, and return the number of bytes that the system accepted. Raise OSError as `os.write` does."""

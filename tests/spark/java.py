"""Options of Java processes that run for a few minutes."""

from __future__ import annotations

from typing import Final

OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Start quickly instead of optimizing. The verification of class files takes a seventh of the time of a short program.
"""

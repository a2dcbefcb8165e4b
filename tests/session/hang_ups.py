"""When clients are hung up on."""

from __future__ import annotations

from kestrel.testing.server import MemoryClient, MemoryServer


def closes_after(server: MemoryServer, client: MemoryClient, seconds: float) -> bool:
    """Whether that client is hung up on when that time has gone by, and not a quarter of a second earlier."""
    server.advance(seconds - 0.25)
    if client.is_closed:
        return False
    server.advance(0.25)
    server.settle()
    return client.is_closed

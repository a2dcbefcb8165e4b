"""Checks of when the server disconnects a client."""

from __future__ import annotations

from kestrel.testing.server import MemoryClient, MemoryServer


def closes_after(server: MemoryServer, client: MemoryClient, seconds: float) -> bool:
    """Return True if the server disconnects the client after exactly this time, to a quarter of a second."""
    server.advance(seconds - 0.25)
    if client.is_closed:
        return False
    server.advance(0.25)
    server.settle()
    return client.is_closed

"""Ports over real sockets, with a reactor that only the tests iterate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from twisted.internet.epollreactor import EPollReactor

from tests.net.sockets import Net


@pytest.fixture(scope="session")
def own_reactor() -> EPollReactor:
    """Return a reactor that is not the process's and never runs. It keeps two descriptors to wake itself up."""
    return EPollReactor()


@pytest.fixture(params=["twisted", "hub"])
def net(request: pytest.FixtureRequest, own_reactor: EPollReactor) -> Iterator[Net]:
    """Return a port with Twisted's connections, and one with the hub's."""
    net = Net(own_reactor, request.param == "hub")
    yield net
    net.end()


@pytest.fixture
def hub_net(own_reactor: EPollReactor) -> Iterator[Net]:
    """Return a port with the hub's connections."""
    net = Net(own_reactor, True)
    yield net
    net.end()

"""Ports over real sockets, with a reactor that only the test moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from twisted.internet.epollreactor import EPollReactor

from tests.net.sockets import Net


@pytest.fixture(scope="session")
def own_reactor() -> EPollReactor:
    """One that is not the process's. It is never run, and keeps two descriptors to wake itself up."""
    return EPollReactor()


@pytest.fixture(params=["twisted", "hub"])
def net(request: pytest.FixtureRequest, own_reactor: EPollReactor) -> Iterator[Net]:
    """A port whose connections are Twisted's, and one whose are the hub's: both keep the same promises."""
    net = Net(own_reactor, request.param == "hub")
    yield net
    net.end()


@pytest.fixture
def hub_net(own_reactor: EPollReactor) -> Iterator[Net]:
    """A port whose connections are the hub's."""
    net = Net(own_reactor, True)
    yield net
    net.end()

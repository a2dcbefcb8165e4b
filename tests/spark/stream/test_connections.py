"""Pauses after failures of a server."""

from __future__ import annotations

import pytest

from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.queue_reader import ServerConnections, ServerRefused, ServerUnavailable
from tests.spark.stream.fakes import QUEUE, A, World


def peek(connections: ServerConnections) -> int:
    return connections.ask_once(A, lambda calls: calls.peek(QUEUE)).items


def pause(world: World, connections: ServerConnections) -> float:
    """Return the pause after a failure now, in seconds."""
    asked = len(world[A].asked)
    with pytest.raises(ServerUnavailable):
        peek(connections)
    assert len(world[A].asked) == asked + 1
    began_s = world.now_s
    while len(world[A].asked) == asked + 1:
        world.sleep(0.05)
        with pytest.raises(ServerUnavailable):
            peek(connections)
    return world.now_s - began_s


def test_pauses_grow_with_failures_until_a_reply() -> None:
    world = World(A)
    connections = world.connections(world.servers())
    world[A].is_away = True
    pauses = []
    for _ in range(4):
        pauses.append(pause(world, connections))
        world.sleep(60)
    assert pauses[0] < 0.6 and pauses[-1] > 4
    world[A].is_away = False
    assert peek(connections) == 0
    world[A].is_away = True
    assert pause(world, connections) < 0.6


def test_patient_call_waits_and_then_names_the_server() -> None:
    world = World(A)
    connections = world.connections(world.servers())
    world[A].is_away = True
    with pytest.raises(SourceFailed, match="a:2229: away"):
        connections.ask(A, lambda calls: calls.peek(QUEUE))
    assert 100 < world.now_s <= 120


def test_refusal_is_reported_at_once() -> None:
    world = World(A)
    connections = world.connections(world.servers())
    for ask in (connections.ask, connections.ask_once):
        with pytest.raises(ServerRefused, match="a:2229: it is read by another reader"):
            ask(A, lambda calls: calls.release_range(QUEUE, b"s", 1))
    assert world.now_s == 0

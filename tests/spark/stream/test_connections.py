"""Who is left alone, and for how long."""

from __future__ import annotations

import pytest

from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.queue_reader import ServerConnections, ServerRefused, ServerUnavailable
from tests.spark.stream.fakes import QUEUE, A, World


def peek(connections: ServerConnections) -> int:
    return connections.ask_once(A, lambda calls: calls.peek(QUEUE)).items


def pause(world: World, connections: ServerConnections) -> float:
    """How long a server is left alone that fails now, in seconds."""
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


def test_a_server_that_fails_again_is_left_alone_for_longer_until_it_answers() -> None:
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


def test_who_is_patient_waits_and_then_is_told_which_server_it_was() -> None:
    world = World(A)
    connections = world.connections(world.servers())
    world[A].is_away = True
    with pytest.raises(SourceFailed, match="a:2229: away"):
        connections.ask(A, lambda calls: calls.peek(QUEUE))
    assert 100 < world.now_s <= 120


def test_a_no_is_told_at_once_whoever_asks() -> None:
    world = World(A)
    connections = world.connections(world.servers())
    for ask in (connections.ask, connections.ask_once):
        with pytest.raises(ServerRefused, match="a:2229: it is read by another reader"):
            ask(A, lambda calls: calls.release_range(QUEUE, b"s", 1))
    assert world.now_s == 0

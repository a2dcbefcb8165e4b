"""How a client of ZooKeeper comes back."""

from __future__ import annotations

import socket
import time
from itertools import pairwise

from kestrel.address import Address
from kestrel.cluster.zookeeper import problem_of, zookeeper_client

SESSION_S = 0.9


def test_who_is_let_in_and_not_answered_tries_again_within_the_time_of_the_session() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        client = zookeeper_client([Address(*silent.getsockname())], SESSION_S)
        client.start_async()
        try:
            connections, times = [], []
            for _ in range(3):
                connections.append(silent.accept()[0])
                times.append(time.monotonic())
            for each in connections:
                each.close()
            waits = [later - earlier for earlier, later in pairwise(times)]
            assert min(waits) < SESSION_S  # those of kazoo have all of it, and a pause
        finally:
            client.stop()
            client.close()


def test_why_there_is_no_connection_is_known() -> None:
    client = zookeeper_client([Address("127.0.0.1", 1)], SESSION_S)
    assert problem_of(client) == "no answer"

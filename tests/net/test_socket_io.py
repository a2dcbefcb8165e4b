"""Reads and writes of sockets by descriptor, in both builds."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kestrel.net.socket_io import receive, send

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def test_read_returns_at_most_the_size(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"a\0bc")
    assert [receive(ours.fileno(), 3), receive(ours.fileno(), 64 * 1024)] == [b"a\0b", b"c"]


def test_read_without_bytes_would_block(pair: Pair) -> None:
    with pytest.raises(BlockingIOError):
        receive(pair[0].fileno(), 100)


def test_read_at_the_end_returns_nothing(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    assert receive(ours.fileno(), 100) == b""


def test_write_returns_the_number_of_accepted_bytes(pair: Pair) -> None:
    ours, theirs = pair
    assert send(ours.fileno(), b"a\0b") == 3
    assert theirs.recv(100) == b"a\0b"
    much = bytes(8 << 20)
    assert 0 < send(ours.fileno(), much) < len(much)
    with pytest.raises(BlockingIOError):
        send(ours.fileno(), b"more")


def test_write_to_a_closed_peer_fails(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(BrokenPipeError):
        send(ours.fileno(), b"lost")


@pytest.mark.parametrize("call", [lambda: receive(-1, 100), lambda: send(-1, b"lost")])
def test_invalid_descriptor_is_an_error(call: Callable[[], object]) -> None:
    with pytest.raises((OSError, ValueError)):
        call()


@pytest.mark.parametrize("function, arguments", [(receive, [-1]), (receive, []), (send, ["text"])])
def test_invalid_arguments_are_an_error(function: Any, arguments: list[object], pair: Pair) -> None:
    with pytest.raises((OSError, TypeError, ValueError)):
        function(pair[0].fileno(), *arguments)

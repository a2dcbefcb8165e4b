"""The drain command of kestrel-cli: move the items of another server to this one."""

from __future__ import annotations

import os
import re
import signal
import socket
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Final

from kestrel.address import DEFAULT_PORTS, Address, parse_address
from kestrel.client.errors import CannotConnect, ClientFailure
from kestrel.errors import BadQueueName
from kestrel.escaping import show_name
from kestrel.names import check_queue_name, children_among
from kestrel.tools.cli.draining import DrainSource, ItemMover, SourceQueues, UncertainItem
from kestrel.tools.cli.servers import TOOL, CommandServers
from kestrel.tools.connection_errors import ConnectionContext
from kestrel.tools.formatting import count, show_text
from kestrel.tools.output import Output
from kestrel.tools.progress import LoadProgress
from kestrel.tools.tool_runner import (
    EX_FOUND,
    EX_INTERRUPTED,
    EX_OK,
    EX_SERVER,
    EX_USAGE,
    Clock,
    ToolFailed,
    print_error,
)

_NAME: Final = re.compile(rb"[^/\s\x00-\x1f\x7f]{1,250}")
"""Queue names that every supported server accepts. Some of them are not valid names here."""


def source_queue(text: str) -> bytes:
    """Parse the name of a queue of the source server."""
    name = os.fsencode(text)
    if _NAME.fullmatch(name) is None:
        raise ArgumentTypeError("a queue name cannot hold / white space or control characters")
    return name


def source_address(text: str) -> Address:
    """Parse the address of the source server."""
    try:
        return parse_address(text, DEFAULT_PORTS["memcache"])
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def drain(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Move the items of queues to this server. Return status 0 if none is left at the source."""
    names: list[bytes] = arguments.queues
    if bool(names) is arguments.all:
        raise ToolFailed("name the queues to drain, or use --all", EX_USAGE)
    if arguments.new_name is not None and len(names) != 1:
        raise ToolFailed("--as is for one queue that is named", EX_USAGE)
    known = servers.memcache
    there = {name for _, queues in servers.each(lambda each: each.ask(known.dump_stats())) for name in queues}
    source: Address = arguments.source
    try:
        connection = DrainSource(source, arguments.timeout)
    except CannotConnect as failure:
        raise _source_failed(failure, source) from None
    with closing(connection), _catch_interrupt() as is_over:
        try:
            queues = connection.queues()
        except ClientFailure as failure:
            raise _source_failed(failure, source) from None
        work = _Drain(servers, connection, arguments, clock, is_over)
        status = work.do(_chosen(queues, names), queues, there)
        if is_over():
            print_error(TOOL, "interrupted; run this again to go on")
            return EX_INTERRUPTED
    return status


class _Drain:
    def __init__(
        self,
        servers: CommandServers,
        source: DrainSource,
        arguments: Namespace,
        clock: Clock,
        is_over: Callable[[], bool],
    ) -> None:
        self._servers = servers
        self._source = source
        self._new_name: bytes | None = arguments.new_name
        self._is_quiet: bool = arguments.quiet
        self._is_json: bool = arguments.json
        self._is_all: bool = arguments.all
        self._output = Output()
        self._is_over = is_over
        self._seconds = clock.seconds
        self._is_same = _is_same(source.address, servers)

    def do(self, names: list[bytes], queues: SourceQueues, there: set[bytes]) -> int:
        """Drain queues one after the other. Return the exit status.

        `queues` are the queues of the source, which would create a missing queue when asked for an item. `there` are
        the queues of the target.
        """
        status = EX_OK
        for name in names:
            if not queues.has(name):
                print_error(TOOL, f"there is no queue {show_name(name)} at {show_text(str(self._source.address))}")
                status = EX_FOUND
                continue
            target = name if self._new_name is None else self._new_name
            reason = self._reason_against(name, target, there)
            if reason is not None:
                print_error(TOOL, f"{show_name(name)} is not drained: {reason}")
                status = EX_FOUND
            elif self._is_over():
                break
            elif self._drain(name, target):
                status = EX_FOUND
        return status

    def _reason_against(self, name: bytes, target: bytes, there: set[bytes]) -> str | None:
        try:
            check_queue_name(target)
        except BadQueueName as error:
            return f"{error}; drain it alone, with a new name in --as"
        if self._is_same and name == target:
            return "--from is the server that it would be put to; name another one with --server, or use --as"
        children = children_among(there, target)
        if children:
            return (
                f"at the target there is {show_name(children[0])}, which would get each item as well;"
                " drain into another queue with --as, or delete its children there"
            )
        return None

    def _drain(self, name: bytes, target: bytes) -> int:
        """Drain one queue. Return how many items are left at the source."""
        with LoadProgress(None, seconds=self._seconds) as progress:
            size = 0

            def moved(item_bytes: int) -> None:
                nonlocal size
                size += item_bytes
                progress.reached(draining.moved, size)

            draining = ItemMover(self._source, name, self._servers, target, is_over=self._is_over, moved=moved)
            failed: ToolFailed | None = None
            left = 0
            try:
                left = draining.drain()
            except ClientFailure as failure:
                failed = _source_failed(failure, self._source.address)
            except ToolFailed as failure:
                failed = failure
            except KeyboardInterrupt:  # the second one
                print_error(TOOL, f"{show_name(name)}: {_format_account(draining)}")
                raise
        if failed is not None:
            print_error(TOOL, str(failed))
            raise ToolFailed(f"{show_name(name)}: {_format_account(draining)}", failed.status)
        self._tell(name, target, draining.moved, left)
        return left

    def _tell(self, name: bytes, target: bytes, moved: int, left: int) -> None:
        if left:
            where = show_text(str(self._source.address))
            way_out = "held by other clients, or just come: run this again"
            print_error(TOOL, f"{show_name(name)}: {count(left, 'item')} left at {where}, {way_out}")
        if self._is_json:
            self._output.object({"queue": show_name(name), "to": show_name(target), "moved": moved, "left": left})
        elif not self._is_quiet and (moved or not self._is_all):
            renamed = "" if name == target else f" to {show_name(target)}"
            self._output.line(f"{show_name(name)}: {count(moved, 'item')} moved{renamed}")
        self._output.flush()


def _chosen(queues: SourceQueues, names: list[bytes]) -> list[bytes]:
    """Return the queues to drain.

    Parents come first, because an item put to a parent also goes to its existing children.
    """
    if not names:
        for cursor in sorted(queues.cursors):
            print_error(TOOL, f"{show_name(cursor)} is a cursor, which has no items of its own, and is not drained")
        names = sorted(queues.figures.keys() - queues.cursors)
    return sorted(dict.fromkeys(names), key=lambda name: b"+" in name)


def _format_account(draining: ItemMover) -> str:
    said = f"{count(draining.moved, 'item')} moved"
    match draining.uncertain_item:
        case UncertainItem.MAY_COME_AGAIN:
            return f"{said}, of which the last one may be at the source as well"
        case UncertainItem.MAY_BE_PUT:
            return f"{said}; the next one is at the source, and may be at the target as well"
        case UncertainItem.NONE:
            return f"{said}; all others are at the source"


def _source_failed(failure: ClientFailure, address: Address) -> ToolFailed:
    failed = ConnectionContext("--from", "memcache", is_tls=False, prefix="--from ").failed(failure, str(address))
    return ToolFailed(str(failed), EX_SERVER)  # also for a rejected request: then it is not a memcache queue server


def _is_same(source: Address, servers: CommandServers) -> bool:
    """Return whether the source is one of the target servers, as far as addresses tell."""
    theirs = _places(source)
    return any(theirs & _places(address) for address in servers.all_servers())


def _places(address: Address) -> set[tuple[str, int]]:
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(*address, type=socket.SOCK_STREAM)}
    except OSError:
        found = {address.host}
    loopback = any(each == "::1" or each.startswith("127.") for each in found)
    return {(each, address.port) for each in found | ({"loopback"} if loopback else set())}


@contextmanager
def _catch_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed, so that the current item can be moved first.

    A second Ctrl-C raises KeyboardInterrupt at once.
    """
    is_interrupted = False

    def interrupted(*_: object) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            raise KeyboardInterrupt
        is_interrupted = True

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, before)

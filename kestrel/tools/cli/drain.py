"""The drain command of kestrel-cli: move the items of another server to this one.

The other server may be a Kestrel, darner, siberite or this server. Only requests that all of them support are used:
`stats`, and `get` with ``/open``, ``/close``, ``/close/open`` and ``/abort``. A connection has one open read at a time.
Each server puts it back when the connection ends.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from math import inf
from typing import Final, NamedTuple

from kestrel.address import DEFAULT_PORTS, Address, parse_address
from kestrel.client.call import LINE, Call, Reply
from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import BadReply, CannotConnect, ClientFailure, RequestError, ServerError
from kestrel.client.memcache import MemcacheCalls
from kestrel.errors import BadQueueName
from kestrel.escaping import show_name, unescape_name
from kestrel.names import check_queue_name, children_among
from kestrel.protocols.memcache import MAX_ITEM_BYTES
from kestrel.tools.cli.item_transfers import BatchLoad
from kestrel.tools.cli.servers import TOOL, CommandServers
from kestrel.tools.formatting import count, show_text
from kestrel.tools.progress import LoadProgress
from kestrel.tools.tool_runner import (
    EX_FOUND,
    EX_INTERRUPTED,
    EX_OK,
    EX_SERVER,
    BadUsage,
    Clock,
    ConnectionContext,
    Output,
    ToolFailed,
    print_error,
)

_NAME: Final = re.compile(rb"[^/\s\x00-\x1f\x7f]{1,250}")
"""Queue names that every supported server accepts. Some of them are not valid names here."""

_VALUE: Final = re.compile(rb"VALUE ([^ ]+) \d{1,10} (\d{1,10})")
_FIGURE: Final = re.compile(r"queue_(.+)_(items|open_transactions)", re.DOTALL)
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_END_OF_ITEM: Final = b"\r\nEND\r\n"
_AT_SOURCE: Final = "; all others are at the source"


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
        raise BadUsage("name the queues to drain, or use --all")
    if arguments.new_name is not None and len(names) != 1:
        raise BadUsage("--as is for one queue that is named")
    calls = servers.memcache
    there = {name for _, queues in servers.each(lambda each: each.ask(calls.dump_stats())) for name in queues}
    try:
        source = _Source(arguments.source, arguments.timeout)
    except CannotConnect as failure:
        raise _source_failed(failure, arguments.source) from None
    with closing(source), _catch_interrupt() as is_over:
        status = _Drain(servers, source, arguments, clock, is_over).run(names, there)
        if is_over():
            print_error(TOOL, "interrupted; run this again to go on")
            return EX_INTERRUPTED
    return status


def _source_failed(failure: ClientFailure, address: Address) -> ToolFailed:
    failed = ConnectionContext("--from", "memcache", is_tls=False, prefix="--from ").failed(failure, str(address))
    return ToolFailed(str(failed), EX_SERVER)  # also for a rejected request: then it is not a memcache queue server


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


class _SourceQueues(NamedTuple):
    """Queues that the source server reports."""

    counts: Mapping[bytes, tuple[int, int]]
    """Number of available items, and number of open reads."""
    cursors: frozenset[bytes]
    """Names in `counts` that are cursors: second readers of a queue, without items of their own. Only siberite has
    them."""
    has_cursors: bool

    def has(self, name: bytes) -> bool:
        """Return whether the server can be asked for items of that name without creating a queue.

        A server with cursors may have some that it does not report.
        """
        return name in self.counts or (self.has_cursors and name.partition(b".")[0] in self.counts)


class _Source:
    """A connection to the server to drain. Methods raise `ClientFailure`, the constructor `CannotConnect`."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self._connection = BlockingConnection.to(address, timeout_s)

    def get(self, queue: bytes, options: bytes) -> bytes | None:
        """Open, confirm or abort a read, as `options` say. Return the data of the item that was opened, if any.

        siberite also returns None for an empty item, and drops that item.
        """
        return self._connection.ask(Call(b"get %b%b\r\n" % (queue, options), _item()))

    def queues(self) -> _SourceQueues:
        stats = self._connection.ask(MemcacheCalls().stats())
        found: dict[str, dict[str, int]] = {}
        for name, value in stats.items():
            figure = _FIGURE.fullmatch(name)
            if figure is not None and _NUMBER.fullmatch(value):
                found.setdefault(figure[1], {})[figure[2]] = int(value)
        # `queue_mail_total_items` is a statistic of `mail`, not of a queue `mail_total`, which would have both.
        counts = {
            unescape_name(name.encode("utf-8", "surrogateescape")): (each["items"], each["open_transactions"])
            for name, each in found.items()
            if len(each) == 2
        }
        has_cursors = stats.get("version", "").startswith("siberite")
        return _SourceQueues(counts, frozenset(name for name in counts if has_cursors and b"." in name), has_cursors)

    def close(self) -> None:
        """Close the connection. The server puts an open read back."""
        self._connection.close()


def _item() -> Reply[bytes | None]:
    line = yield LINE
    word, _, reason = line.partition(b" ")
    text = reason.decode("utf-8", "replace").strip()
    if word == b"SERVER_ERROR":
        raise ServerError(text or "the server gave no reason")
    if word in (b"CLIENT_ERROR", b"ERROR"):
        raise RequestError(text or "the server rejected the request and gave no reason")
    if line == b"END":
        return None
    value = _VALUE.fullmatch(line)
    if value is None:
        # The line is not shown, because it may be part of an item.
        raise BadReply(f"a line of {len(line)} bytes is not a reply to the request")
    size = int(value[2])
    if size > MAX_ITEM_BYTES:
        raise BadReply(f"the item at the head has {size} bytes; limit={MAX_ITEM_BYTES}; it stays there")
    data = yield size
    if (yield len(_END_OF_ITEM)) != _END_OF_ITEM:
        raise BadReply("the item is longer than its announced size, or its end is damaged")
    return data


class _Drain:
    """The draining of several queues, one after the other."""

    def __init__(
        self,
        servers: CommandServers,
        source: _Source,
        arguments: Namespace,
        clock: Clock,
        is_over: Callable[[], bool],
    ) -> None:
        self._servers = servers
        self._source = source
        self._arguments = arguments
        self._output = Output()
        self._is_over = is_over
        self._seconds = clock.seconds
        self._is_same = _is_same(source.address, servers)

    def run(self, names: list[bytes], there: set[bytes]) -> int:
        """Drain the named queues, or all. Return the exit status. `there` are the queues of the target."""
        try:
            queues = self._source.queues()
        except ClientFailure as failure:
            raise _source_failed(failure, self._source.address) from None
        if not names:
            for cursor in sorted(queues.cursors):
                print_error(TOOL, f"{show_name(cursor)} is a cursor, which has no items of its own, and is not drained")
            names = sorted(queues.counts.keys() - queues.cursors)
        status = EX_OK
        # Parents come first, because an item put to a parent also goes to its existing children.
        for name in sorted(dict.fromkeys(names), key=lambda name: b"+" in name):
            if not queues.has(name):  # asking for an item would create it
                print_error(TOOL, f"there is no queue {show_name(name)} at {show_text(str(self._source.address))}")
                status = EX_FOUND
                continue
            target = name if self._arguments.new_name is None else self._arguments.new_name
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
            mover = _ItemMover(self._source, name, self._servers, target, self._is_over, progress)
            failed: ToolFailed | None = None
            left = 0
            try:
                left = mover.drain()
            except ClientFailure as failure:
                failed = _source_failed(failure, self._source.address)
            except ToolFailed as failure:
                failed = failure
            except KeyboardInterrupt:  # the second one
                print_error(TOOL, f"{show_name(name)}: {mover.account}")
                raise
        if failed is not None:
            print_error(TOOL, str(failed))
            raise ToolFailed(f"{show_name(name)}: {mover.account}", failed.status)
        self._tell(name, target, mover.moved, left)
        return left

    def _tell(self, name: bytes, target: bytes, moved: int, left: int) -> None:
        if left:
            where = show_text(str(self._source.address))
            way_out = "held by other clients, or just come: run this again"
            print_error(TOOL, f"{show_name(name)}: {count(left, 'item')} left at {where}, {way_out}")
        if self._arguments.json:
            self._output.object({"queue": show_name(name), "to": show_name(target), "moved": moved, "left": left})
        elif not self._arguments.quiet and (moved or not self._arguments.all):
            renamed = "" if name == target else f" to {show_name(target)}"
            self._output.line(f"{show_name(name)}: {count(moved, 'item')} moved{renamed}")
        self._output.flush()


class _ItemMover:
    """A mover of the items of one queue: it opens each item, puts it to the target, and only then confirms it.

    `is_over` is called before each item, and ends the move if it returns True.
    """

    def __init__(
        self,
        source: _Source,
        queue: bytes,
        servers: CommandServers,
        target: bytes,
        is_over: Callable[[], bool],
        progress: LoadProgress,
    ) -> None:
        self._source = source
        self._queue = queue
        self._load = BatchLoad(servers, target)
        self._is_over = is_over
        self._progress = progress
        self._moved_bytes = 0
        self._last_item = _AT_SOURCE

    @property
    def moved(self) -> int:
        return self._load.stored

    @property
    def account(self) -> str:
        """Number of items moved and, after an error, where the last item may be."""
        return f"{count(self.moved, 'item')} moved{self._last_item}"

    def drain(self) -> int:
        """Move all items. Return how many are left: open reads of other clients, or items that have just arrived.

        Raise `ClientFailure` if the source fails and `ToolFailed` if the target fails.
        """
        left: float = inf
        while True:
            before = self.moved
            self._move_all()
            if self._is_over():
                return 0
            items, held = self._source.queues().counts.get(self._queue, (0, 0))
            # siberite answers an empty item like an empty queue, and drops the item.
            if not items or (items >= left and self.moved == before):
                return items + held
            left = items

    def _move_all(self) -> None:
        if self._is_over():
            return
        data = self._source.get(self._queue, b"/open")
        while data is not None:
            self._put(data)
            self._last_item = ", of which the last one may be at the source as well"
            if self._is_over():
                self._source.get(self._queue, b"/close")
                data = None
            else:
                data = self._source.get(self._queue, b"/close/open")
            self._last_item = _AT_SOURCE

    def _put(self, data: bytes) -> None:
        self._last_item = "; the next one is at the source, and may be at the target as well"
        try:
            self._load.put([data])
        except ToolFailed:
            if not self._load.is_uncertain:
                self._last_item = _AT_SOURCE
            with suppress(ClientFailure):  # if the connection is lost, the server puts the item back
                self._source.get(self._queue, b"/abort")
            raise
        self._moved_bytes += len(data)
        self._progress.reached(self.moved, self._moved_bytes)


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

"""The commands of kestrel-cli for whole queues, servers and server sets."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from kestrel.client.call import Call
from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import NoServer
from kestrel.client.members import FollowedServers
from kestrel.cluster.member import READ, WRITE, Member
from kestrel.escaping import show_name
from kestrel.tools.cli.servers import TOOL, CommandServers
from kestrel.tools.formatting import align_table, queue_table, server_line, show_data, show_text, stat_lines, stats_json
from kestrel.tools.output import Output
from kestrel.tools.tool_runner import EX_FOUND, EX_OK, EX_SERVER, EX_USAGE, Clock, ToolFailed, print_error


def stats(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Show statistics, once or repeatedly. Return status 1 if a named queue does not exist."""
    output = Output()
    if arguments.watch is None:
        return _stats(servers, arguments, output)
    try:
        while True:
            _stats_or_why_not(servers, arguments, output)
            clock.pause(arguments.watch)
            if output.is_terminal:
                output.exactly(b"\x1b[H\x1b[J")  # cursor to the top left, clear the screen
            elif not arguments.json:
                output.line("")
    except KeyboardInterrupt:
        return EX_OK


def _stats_or_why_not(servers: CommandServers, arguments: Namespace, output: Output) -> None:
    """Show statistics, or report that a server cannot be reached: it may return."""
    try:
        _stats(servers, arguments, output)
    except ToolFailed as failed:
        if failed.status != EX_SERVER:
            raise
        output.flush()
        print_error(TOOL, str(failed))


def _stats(servers: CommandServers, arguments: Namespace, output: Output) -> int:
    missing: set[bytes] = set(arguments.queues)
    calls = servers.memcache

    def ask(connection: BlockingConnection) -> tuple[dict[str, str], dict[bytes, dict[str, str]]]:
        return connection.ask(calls.stats()), connection.ask(calls.dump_stats())

    for address, (figures, queues) in servers.each(ask):
        of_queues = {name: queues[name] for name in arguments.queues or queues if name in queues}
        missing.difference_update(of_queues)
        if arguments.json:
            output.object(stats_json(str(address), figures, of_queues))
        elif arguments.raw:
            for line in stat_lines(figures, of_queues, is_of_queues=bool(arguments.queues)):
                output.line(show_text(line) if output.is_terminal else line)
        else:
            output.line(server_line(str(address), figures, len(queues), len(of_queues)))
            output.lines(queue_table(of_queues))
    output.flush()
    for name in sorted(missing):
        print_error(TOOL, f"there is no queue {show_name(name)}")
    return EX_FOUND if missing else EX_OK


def list_queues(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Show the names of all queues of the servers, one per line."""
    calls = servers.memcache
    answers = servers.each(lambda connection: connection.ask(calls.dump_stats()))
    names = {name for _, queues in answers for name, figures in queues.items() if "items" in figures}
    output = Output()
    output.lines(map(show_name, sorted(names)))
    output.flush()
    return EX_OK


def reload(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Make the servers read their configurations again."""
    calls = servers.memcache

    def ask(connection: BlockingConnection) -> str:
        connection.ask(calls.reload())
        return "reloaded"

    return _tell(servers, ask)


def status(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Show the status of the servers, after changing it if a new one is given."""
    if arguments.status is not None:
        _have_done(servers, lambda: servers.dialect.set_status(arguments.status))
    return _tell(servers, lambda connection: connection.ask(servers.dialect.status()))


def version(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Show the release of each server."""
    return _tell(servers, lambda connection: connection.ask(servers.dialect.version()))


def flush_expired(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Drop expired items, and show how many were dropped."""
    calls = servers.memcache
    queues: list[bytes] = arguments.queues

    def ask(connection: BlockingConnection) -> int:
        if not queues:
            return connection.ask(calls.flush_all_expired())
        return sum(connection.ask(calls.flush_expired(queue)) for queue in queues)

    return _tell(servers, ask)


def _tell(servers: CommandServers, ask: Callable[[BlockingConnection], object]) -> int:
    """Print the answer of each server, after the server's name unless a single server was named."""
    output = Output()
    for address, answer in servers.each(ask):
        where = "" if servers.asked.is_alone else f"{show_text(str(address))}: "
        output.line(f"{where}{show_text(str(answer))}")
        output.flush()
    return EX_OK


def dump_config(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Show the settings in effect for queues."""
    output = Output()
    calls = servers.memcache
    for address, queues in servers.each(lambda connection: connection.ask(calls.dump_config(*arguments.queues))):
        if arguments.json:
            shown = {show_name(name): settings for name, settings in queues.items()}
            output.object({"server": str(address), "queues": shown})
            continue
        if not servers.asked.is_alone:
            output.line(f"{show_text(str(address))}:")
        for name, settings in queues.items():
            output.line(show_name(name))
            for setting, value in settings.items():
                output.line(f"  {show_text(setting)} = {show_text(value)}")
    output.flush()
    return EX_OK


def flush(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Drop all items of a queue."""
    return _change(servers, arguments, "drop all items of the queue {queue}, on {servers}?", servers.dialect.flush)


def delete(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Delete a queue with all its items."""
    return _change(
        servers, arguments, "delete the queue {queue} with all its items, on {servers}?", servers.dialect.delete
    )


def close_range(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Release the items that are kept for a reader by ids."""
    calls, reader = servers.thrift, arguments.reader.encode(errors="surrogateescape")
    shown = show_data(reader).replace("{", "{{").replace("}", "}}")
    question = f"release the items of the queue {{queue}} kept for the reader {shown}, on {{servers}}?"
    return _change(servers, arguments, question, lambda queue: calls.close_range(queue, reader))


def _change(
    servers: CommandServers, arguments: Namespace, question: str, make_call: Callable[[bytes], Call[None]]
) -> int:
    queue: bytes = arguments.queue
    if servers.has_memcache and not _is_there(servers, queue):  # thrift has no request for it
        raise ToolFailed(f"there is no queue {show_name(queue)}", EX_FOUND)
    if not arguments.yes and sys.stdin is not None and sys.stdin.isatty():
        where = ", ".join(show_text(str(address)) for address in servers.all_servers())
        sys.stderr.write(f"{question.format(queue=show_name(queue), servers=where)} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print_error(TOOL, "nothing was done")
            return EX_FOUND
    _have_done(servers, lambda: make_call(queue))
    return EX_OK


def _is_there(servers: CommandServers, queue: bytes) -> bool:
    """Return whether a server has that queue. Raise `ToolFailed` if none that answers has it and others fail."""
    calls = servers.memcache
    return any(queues.get(queue) for _, queues in servers.each(lambda each: each.ask(calls.dump_stats(queue))))


def _have_done(servers: CommandServers, make_call: Callable[[], Call[None]]) -> None:
    for _ in servers.each(lambda connection: connection.ask(make_call())):
        pass


_OURS: Final = ("memcache", "thrift", "text")
"""Protocols whose columns come first."""


class _MemberRow(NamedTuple):
    """A server, and whether it is in the read set and in the write set."""

    member: Member
    is_read: bool
    is_written: bool


def servers(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Show the members of the read and write sets. Return status 0 if there is one."""
    followed = servers.members
    if not isinstance(followed, FollowedServers):
        raise ToolFailed("these are servers, and no server set: name one with --server zk://HOST/PATH", EX_USAGE)
    try:
        reads, writes = followed.members()
    except NoServer as failure:
        raise servers.failed(failure) from None
    entries = [_MemberRow(member, member in reads, member in writes) for member in _each_once((*reads, *writes))]
    if not entries:
        print_error(TOOL, f"no server is in {show_text(str(followed.uri))}")
        return EX_FOUND
    output = Output()
    if arguments.json:
        for entry in entries:
            output.object(_json(entry))
    else:
        output.lines(align_table(_table(entries)))
    output.flush()
    return EX_OK


def _each_once(members: Iterable[Member]) -> list[Member]:
    # A member contains a dict, so it is not hashable.
    return list({(member.service, tuple(sorted(member.additional.items()))): member for member in members}.values())


def _json(entry: _MemberRow) -> dict[str, Any]:
    member = entry.member
    return {
        "service": str(member.service),
        "endpoints": {name: str(address) for name, address in member.additional.items()},
        READ: entry.is_read,
        WRITE: entry.is_written,
    }


def _table(entries: Sequence[_MemberRow]) -> list[list[str]]:
    """Return a row of headings, and one row per server with its address for each protocol and its sets."""
    spoken = dict.fromkeys(name for entry in entries for name in entry.member.additional)
    protocols = [*(name for name in _OURS if name in spoken), *(name for name in spoken if name not in _OURS)]
    rows = [["server", *map(show_text, protocols), READ, WRITE]]
    for member, is_read, is_written in entries:
        said = [member.additional.get(protocol) for protocol in protocols]
        where = ["-" if address is None else show_text(str(address)) for address in said]
        rows.append([show_text(str(member.service)), *where, _yes(is_read), _yes(is_written)])
    return rows


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"

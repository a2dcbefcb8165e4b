"""The commands of kestrel-cli for whole queues, servers and server sets."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kestrel.client.call import Call
from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import NoServer
from kestrel.client.members import FollowedServers
from kestrel.cluster.member import READ, WRITE
from kestrel.escaping import show_name
from kestrel.tools.cli.servers import TOOL, CommandServers
from kestrel.tools.formatting import (
    align_table,
    count,
    is_number,
    show_data,
    show_duration,
    show_size,
    show_text,
    stat_number,
)
from kestrel.tools.tool_runner import EX_FOUND, EX_OK, EX_SERVER, BadUsage, Clock, Output, ToolFailed, print_error

_Stats = Mapping[str, str]

_FRACTION: Final = re.compile(r"[0-9]{1,15}\.[0-9]{1,15}")


def stats(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Show statistics, once or repeatedly. Return status 1 if a named queue does not exist."""
    output = Output()
    if arguments.watch is None:
        return _stats(servers, arguments, output)
    try:
        while True:
            try:
                _stats(servers, arguments, output)
            except ToolFailed as failed:
                if failed.status != EX_SERVER:  # a server that cannot be reached may return
                    raise
                output.flush()
                print_error(TOOL, str(failed))
            clock.pause(arguments.watch)
            if output.is_terminal:
                output.exactly(b"\x1b[H\x1b[J")  # cursor to the top left, clear the screen
            elif not arguments.json:
                output.line("")
    except KeyboardInterrupt:
        return EX_OK


def _stats(servers: CommandServers, arguments: Namespace, output: Output) -> int:
    missing: set[bytes] = set(arguments.queues)
    calls = servers.memcache

    def ask(connection: BlockingConnection) -> tuple[dict[str, str], dict[bytes, dict[str, str]]]:
        return connection.ask(calls.stats()), connection.ask(calls.dump_stats())

    for address, (of_server, queues) in servers.each(ask):
        of_queues = {name: queues[name] for name in arguments.queues or queues if name in queues}
        missing.difference_update(of_queues)
        if arguments.json:
            output.object(_stats_json(str(address), of_server, of_queues))
        elif arguments.raw:
            for line in _stat_lines(of_server, of_queues, is_of_queues=bool(arguments.queues)):
                output.line(show_text(line) if output.is_terminal else line)
        else:
            output.line(_server_line(str(address), of_server, len(queues), len(of_queues)))
            output.lines(_queue_table(of_queues))
    output.flush()
    for name in sorted(missing):
        print_error(TOOL, f"there is no queue {show_name(name)}")
    return EX_FOUND if missing else EX_OK


def _server_line(address: str, of_server: _Stats, queues: int, shown: int) -> str:
    """Return a one-line summary of a server. `shown` of its `queues` are listed below that line."""
    of_queues = count(queues, "queue") if shown == queues else f"{shown} of {count(queues, 'queue')}"
    up_ms = 1000 * stat_number(of_server, "uptime")
    connections = count(stat_number(of_server, "curr_connections"), "connection")
    return (
        f"{show_text(address)}: kestrel {show_text(of_server.get('version', '?'))}, up {show_duration(up_ms)}, "
        f"{of_queues}, {count(stat_number(of_server, 'curr_items'), 'item')}, "
        f"{show_size(stat_number(of_server, 'bytes'))}, {connections}"
    )


def _queue_table(queues: Mapping[bytes, _Stats]) -> Iterator[str]:
    """Yield a heading and one line per queue, then one line per alias. Delayed items have a column if there are any."""
    of_queues = {name: each for name, each in queues.items() if "items" in each}
    has_delayed = any(stat_number(each, "delayed_items") for each in of_queues.values())
    rows = [
        [
            show_name(name),
            str(stat_number(each, "items")),
            *([str(stat_number(each, "delayed_items"))] if has_delayed else []),
            show_size(stat_number(each, "bytes")),
            show_duration(stat_number(each, "age")),
            str(stat_number(each, "waiters")),
            str(stat_number(each, "open_transactions")),
            show_duration(stat_number(each, "oldest_age_msec")) if "oldest_age_msec" in each else "-",
        ]
        for name, each in of_queues.items()
    ]
    if rows:
        items = ["items", "delayed"] if has_delayed else ["items"]
        yield from align_table([["queue", *items, "bytes", "last wait", "waiters", "open reads", "oldest"], *rows])
    for name, each in queues.items():
        if "put_items" in each:
            put = count(stat_number(each, "put_items"), "item")
            yield f"{show_name(name)}: alias of {show_text(each.get('children', ''))}, {put} put to it"


def _stat_lines(of_server: _Stats, queues: Mapping[bytes, _Stats], *, is_of_queues: bool) -> Iterator[str]:
    """Yield ``STAT`` lines: all of the server's, or only those of `queues` if `is_of_queues`."""
    if not is_of_queues:
        yield from (f"STAT {name} {value}" for name, value in of_server.items())
        return
    for queue, of_queue in queues.items():
        spelled = queue.decode("utf-8", "surrogateescape")
        yield from (f"STAT queue_{spelled}_{name} {value}" for name, value in of_queue.items())


def _stats_json(address: str, of_server: _Stats, queues: Mapping[bytes, _Stats]) -> dict[str, Any]:
    own = {name: value for name, value in of_server.items() if not name.startswith("queue_") or "_" not in name[6:]}
    return {
        "server": address,
        "stats": {name: _value(value) for name, value in own.items()},
        "queues": {
            show_name(queue): {name: _value(value) for name, value in of_queue.items()}
            for queue, of_queue in queues.items()
        },
    }


def _value(value: str) -> int | float | str:
    if is_number(value):
        return int(value)
    return float(value) if _FRACTION.fullmatch(value) else show_text(value)


def list_queues(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Show the names of all queues of the servers, one per line."""
    calls = servers.memcache
    answers = servers.each(lambda connection: connection.ask(calls.dump_stats()))
    names = {name for _, queues in answers for name, each in queues.items() if "items" in each}
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
        _ask_all(servers, lambda: servers.dialect.set_status(arguments.status))
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
        where = "" if servers.is_alone else f"{show_text(str(address))}: "
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
        if not servers.is_alone:
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
    """Change a queue on all servers, after the user has confirmed it."""
    queue: bytes = arguments.queue
    if servers.has_memcache:  # thrift has no request for it
        calls = servers.memcache
        # Some servers may fail, as long as one that answers has the queue.
        if not any(there.get(queue) for _, there in servers.each(lambda each: each.ask(calls.dump_stats(queue)))):
            raise ToolFailed(f"there is no queue {show_name(queue)}")
    if not arguments.yes and sys.stdin is not None and sys.stdin.isatty():
        where = ", ".join(show_text(str(address)) for address in servers.all_servers())
        sys.stderr.write(f"{question.format(queue=show_name(queue), servers=where)} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print_error(TOOL, "nothing was done")
            return EX_FOUND
    _ask_all(servers, lambda: make_call(queue))
    return EX_OK


def _ask_all(servers: CommandServers, make_call: Callable[[], Call[None]]) -> None:
    for _ in servers.each(lambda connection: connection.ask(make_call())):
        pass


def servers(servers: CommandServers, arguments: Namespace, clock: Clock) -> int:
    """Show the members of the read and write sets. Return status 0 if there is one."""
    followed = servers.members
    if not isinstance(followed, FollowedServers):
        raise BadUsage("these are servers, and no server set: name one with --server zk://HOST/PATH")
    try:
        reads, writes = followed.members()
    except NoServer as failure:
        raise servers.failed(failure) from None
    # A member contains a dict, so it is not hashable.
    by_addresses = {(each.service, tuple(sorted(each.additional.items()))): each for each in (*reads, *writes)}
    members = list(by_addresses.values())
    if not members:
        print_error(TOOL, f"no server is in {show_text(str(followed.uri))}")
        return EX_FOUND
    output = Output()
    if arguments.json:
        for each in members:
            endpoints = {name: str(address) for name, address in each.additional.items()}
            sets = {READ: each in reads, WRITE: each in writes}
            output.object({"service": str(each.service), "endpoints": endpoints, **sets})
    else:
        spoken = dict.fromkeys(name for each in members for name in each.additional)
        ours = (name for name in ("memcache", "thrift", "text") if name in spoken)
        protocols = list(dict.fromkeys([*ours, *spoken]))
        rows = [["server", *map(show_text, protocols), READ, WRITE]]
        for each in members:
            addresses = [str(each.service), *(str(each.additional.get(protocol) or "-") for protocol in protocols)]
            is_in = ("yes" if each in chosen else "no" for chosen in (reads, writes))
            rows.append([*map(show_text, addresses), *is_in])
        output.lines(align_table(rows))
    output.flush()
    return EX_OK

"""The servers command of kestrel-cli: show the members of a server set."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from kestrel.client.errors import NoServer
from kestrel.client.members import FollowedServers
from kestrel.cluster.member import READ, WRITE, Member
from kestrel.tools.cli.servers import TOOL, CommandServers
from kestrel.tools.clock import Clock
from kestrel.tools.formatting import align_table, show_text
from kestrel.tools.output import Output
from kestrel.tools.tool_runner import EX_FOUND, EX_OK, EX_USAGE, ToolFailed, print_error

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
        for line in align_table(_table(entries)):
            output.line(line)
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

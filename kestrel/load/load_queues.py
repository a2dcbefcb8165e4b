"""The queues of a run: checks before it, and restoring them after it."""

from __future__ import annotations

from collections.abc import Sequence

from kestrel.load.load_run import LoadConnection, LoadRun
from kestrel.load.queue_state import QueueState
from kestrel.names import children_among
from kestrel.tools.formatting import show_text
from kestrel.tools.tool_runner import EX_FOUND, ToolFailed


class LoadQueues:
    """The queues of a run. `is_default` is True if ``--queue`` was not given, so the names are the tool's own."""

    def __init__(self, names: Sequence[bytes], *, is_default: bool) -> None:
        self.names = names
        self._are_ours = is_default
        self._made: set[bytes] = set()

    async def prepare(self, load_run: LoadRun, connection: LoadConnection) -> None:
        """Check the queues before the run. With ``--flush`` drop their items first.

        Raise `ToolFailed` if a queue has items or children. ``--anyway`` allows both, but not items that remain after
        a flush.
        """
        for name in self.names:
            look = await connection.ask(connection.dialect.look(name))
            if look.exists is False or (look.exists is None and self._are_ours and not look.items):
                self._made.add(name)
            if look.items and load_run.options.flush:
                await connection.ask(connection.dialect.flush(name))
                look = await connection.ask(connection.dialect.look(name))
                if look.items:
                    raise ToolFailed(f"{_shown(name)} is not empty: other clients have {look.items:,} open", EX_FOUND)
            elif look.items and not load_run.options.anyway:
                raise ToolFailed(
                    f"{_shown(name)} is not empty, but has {look.items:,} already: name another queue with --queue,"
                    " or use --flush to drop them, or --anyway to have them taken along with the run's own",
                    EX_FOUND,
                )

        if not load_run.options.anyway and (listing := connection.dialect.names()) is not None:
            self._check_no_children(await connection.ask(listing))

    def _check_no_children(self, there: list[bytes]) -> None:
        """Raise `ToolFailed` if a queue has children: they would get each item too, and have readers of their own."""
        for name in self.names:
            children = children_among(there, name)
            if children:
                raise ToolFailed(
                    f"{_shown(name)} has a child, {_shown(children[0])}, which would get the run's items as well: name"
                    " another queue with --queue, or use --anyway to have them stay there",
                    EX_FOUND,
                )

    async def restore(self, load_run: LoadRun, connection: LoadConnection) -> None:
        """Delete the queues that the run has created or that have default names, and flush the others.

        With ``--anyway`` only delete those that the run has created.
        """
        for name in self.names:
            if name in self._made or (self._are_ours and not load_run.options.anyway):
                await connection.ask(connection.dialect.delete(name))
            elif not load_run.options.anyway:
                await connection.ask(connection.dialect.flush(name))


async def look(load_run: LoadRun, names: Sequence[bytes]) -> list[QueueState]:
    """Return the state of each queue. A new connection is used, since the server may have closed an idle one."""
    connection = await load_run.connection()
    found = [await connection.ask(connection.dialect.look(name)) for name in names]
    connection.pipeline.drop()
    return found


def _shown(name: bytes) -> str:
    return "the queue " + show_text(name.decode("utf-8", "surrogateescape"))

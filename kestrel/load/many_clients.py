"""The many-clients tool: many mostly idle connections, each of which puts or takes an item from time to time."""

from __future__ import annotations

from random import Random

from kestrel.load.consumer import drain_remaining
from kestrel.load.ledger import Ledger
from kestrel.load.load_queues import LoadQueues
from kestrel.load.load_run import WAIT_MS, LoadConnection, LoadRun


async def many_clients(load_run: LoadRun, queues: LoadQueues, ledger: Ledger) -> None:
    """Open `--clients` connections. Each rests, puts, rests and takes in a loop, until all items have been put.

    Then take the remaining items over one more connection.
    """
    [queue] = queues.names
    random = Random(load_run.options.seed)
    connects = load_run.run_stats.request_stats("connect")
    connections = await load_run.connections(
        load_run.options.clients, lambda began_s, ended_s: connects.add(0, began_s, ended_s)
    )
    puts, takes = load_run.run_stats.request_stats("put"), load_run.run_stats.request_stats("take")

    async def rest() -> None:
        await load_run.sleep(random.uniform(0, 2 * load_run.options.pause_s))

    async def put(connection: LoadConnection, number: int) -> None:
        data = ledger.items.item(number)
        began_s = load_run.seconds()
        is_stored = await connection.ask(connection.dialect.put(queue, data))
        ledger.add_put(number, is_stored)
        if is_stored:
            puts.add(len(data), began_s, load_run.seconds())

    async def take(connection: LoadConnection) -> bool:
        began_s = load_run.seconds()
        data = await connection.ask(connection.dialect.take(queue, WAIT_MS))
        if data is None:
            return False
        ledger.came(data)
        takes.add(len(data), began_s, load_run.seconds())
        finish = connection.dialect.finish(queue)
        if finish is not None:
            await connection.ask(finish)
        return True

    async def client(connection: LoadConnection) -> None:
        await rest()
        while not load_run.is_stopping and (number := ledger.next_number()) is not None:
            await put(connection, number)
            await rest()
            await take(connection)
            await rest()

    async def take_the_tail() -> None:
        """Take the run's remaining items. Some remain if a client found no item, or took one of another client."""
        connection = await load_run.connection()
        while not load_run.is_stopping and ledger.seen < ledger.expected and await take(connection):
            pass

    await load_run.all([client(connection) for connection in connections])
    await take_the_tail()
    await drain_remaining(load_run, queue, ledger)

"""Many connections, most of them idle: each puts an item or takes one now and then."""

from __future__ import annotations

from random import Random

from kestrel.load.ledger import Ledger
from kestrel.load.queues import LoadQueues
from kestrel.load.taking import take_the_rest
from kestrel.load.work import WAIT_MS, Link, Work


async def many_clients(work: Work, queues: LoadQueues, ledger: Ledger) -> None:
    """`--clients` connections are made and stay. Each rests, puts, rests and takes, until all items have been put."""
    [queue] = queues.names
    random = Random(work.options.seed)
    connects = work.figures.lane("connect")
    links = await work.links(work.options.clients, lambda began_s, ended_s: connects.add(0, began_s, ended_s))
    puts, takes = work.figures.lane("put"), work.figures.lane("take")

    async def rest() -> None:
        await work.sleep(random.uniform(0, 2 * work.options.pause_s))

    async def put(link: Link, number: int) -> None:
        data = ledger.items.item(number)
        began_s = work.seconds()
        is_stored = await link.ask(link.wire.put(queue, data))
        ledger.was_put(number, is_stored)
        if is_stored:
            puts.add(len(data), began_s, work.seconds())

    async def take(link: Link) -> bool:
        began_s = work.seconds()
        data = await link.ask(link.wire.take(queue, WAIT_MS))
        if data is None:
            return False
        ledger.came(data)
        takes.add(len(data), began_s, work.seconds())
        finish = link.wire.finish(queue)
        if finish is not None:
            await link.ask(finish)
        return True

    async def client(link: Link) -> None:
        await rest()
        while not work.is_stopping and (number := ledger.next_number()) is not None:
            await put(link, number)
            await rest()
            await take(link)
            await rest()

    async def take_the_tail() -> None:
        """With --anyway: for each item of somebody else that was taken, one of the run's own is left behind."""
        link = await work.link()
        while not work.is_stopping and ledger.seen < ledger.expected and await take(link):
            pass

    await work.all([client(link) for link in links])
    await take_the_tail()
    await take_the_rest(work, queue, ledger)

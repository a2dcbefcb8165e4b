"""Makes views of pages, and puts them to the queue `views`, as the web servers of a shop would.

    python examples/pipeline/browse.py --servers localhost:2229 --views 2000

Time passes faster in it: a view is half a second behind the one before it.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from kestrel.client.blocking import BlockingClient

PAGES = {"/": 10, "/search": 6, "/shoes": 4, "/hats": 3, "/buy": 1}
"""How often they are looked at, to each other."""

BETWEEN = timedelta(milliseconds=500)


def views(count: int, begin: datetime, seed: int) -> Iterator[bytes]:
    """So many views, the first at that time."""
    dice = random.Random(seed)
    for number in range(count):
        time = begin + number * BETWEEN
        page = dice.choices(list(PAGES), list(PAGES.values()))[0]
        view = {"time": time.isoformat(timespec="milliseconds"), "page": page, "user": f"u{dice.randrange(100)}"}
        yield json.dumps(view).encode()


def main() -> None:
    """Put them."""
    parser = argparse.ArgumentParser(description="Put views of pages.")
    parser.add_argument("--servers", default="localhost:2229", help="thrift ports, with commas (localhost:2229)")
    parser.add_argument("--views", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="begin", type=datetime.fromisoformat, default=datetime.now(UTC))
    arguments = parser.parse_args()
    with BlockingClient(arguments.servers.split(","), "thrift") as client:
        put = client.put_many("views", views(arguments.views, arguments.begin, arguments.seed))
    print(f"{put} views were put")


if __name__ == "__main__":
    main()

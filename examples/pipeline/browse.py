"""A program that generates page views and puts them into the queue `views`, like the web servers of a shop.

    python examples/pipeline/browse.py --servers localhost:2229 --views 2000

The times of the views are half a second apart, so simulated time passes faster than real time.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from kestrel.client.blocking import BlockingClient

PAGES = {"/": 10, "/search": 6, "/shoes": 4, "/hats": 3, "/buy": 1}
"""Pages with their relative frequency."""

BETWEEN = timedelta(milliseconds=500)


def views(count: int, begin: datetime, seed: int) -> Iterator[bytes]:
    """Generate `count` views as JSON, the first at the time `begin`."""
    dice = random.Random(seed)
    for number in range(count):
        time = begin + number * BETWEEN
        page = dice.choices(list(PAGES), list(PAGES.values()))[0]
        view = {"time": time.isoformat(timespec="milliseconds"), "page": page, "user": f"u{dice.randrange(100)}"}
        yield json.dumps(view).encode()


def main() -> None:
    """Parse the command line and put the views."""
    parser = argparse.ArgumentParser(description="Put page views into the queue views.")
    parser.add_argument("--servers", default="localhost:2229", help="thrift ports, comma-separated (localhost:2229)")
    parser.add_argument("--views", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from", dest="begin", type=datetime.fromisoformat, default=datetime.now(UTC))
    arguments = parser.parse_args()
    with BlockingClient(arguments.servers.split(","), "thrift") as client:
        put = client.put_many("views", views(arguments.views, arguments.begin, arguments.seed))
    print(f"{put} views were put")


if __name__ == "__main__":
    main()

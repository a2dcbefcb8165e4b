"""A program that takes counts from the queue `popular` and prints them, like a page with the most popular products.

    python examples/pipeline/popular.py --servers localhost:2229 --for 60

Each count is confirmed after it is printed. A duplicate has the key of an earlier count and is dropped.
"""

from __future__ import annotations

import argparse
import json
import time

from kestrel import keyed
from kestrel.client.blocking import BlockingClient


def main() -> None:
    """Print counts until the time is over or enough views were counted."""
    parser = argparse.ArgumentParser(description="Print counts of page views.")
    parser.add_argument("--servers", default="localhost:2229", help="thrift ports, comma-separated (localhost:2229)")
    parser.add_argument("--for", dest="seconds", type=float, default=60.0, help="run time in seconds (60)")
    parser.add_argument("--until", type=int, help="stop after this many views")
    arguments = parser.parse_args()
    ends_s = time.monotonic() + arguments.seconds
    # A real consumer would store the keys for as long as the stream may be down.
    seen: set[bytes] = set()
    views = 0
    with BlockingClient(arguments.servers.split(","), "thrift") as client:
        while (left_s := ends_s - time.monotonic()) > 0 and (arguments.until is None or views < arguments.until):
            with client.reliable_get("popular", timeout=min(left_s, 1.0)) as item:
                if item is None:
                    continue
                key, data = keyed.split(item)
                count = json.loads(data)
                if key in seen:
                    print(f"  {key.decode()} is a duplicate", flush=True)
                    continue
                print(f"{count['from']}  {count['page']:<8} {count['views']:>4} views", flush=True)
            seen.add(key)
            views += count["views"]
    print(f"{len(seen)} counts of {views} views")


if __name__ == "__main__":
    main()

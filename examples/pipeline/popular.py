"""Takes counts from the queue `popular`, as a page that shows what is popular would.

    python examples/pipeline/popular.py --servers localhost:2229 --for 60

A count is confirmed once it is shown. One that comes twice has the key of the first, and is dropped.
"""

from __future__ import annotations

import argparse
import json
import time

from kestrel import keyed
from kestrel.client.blocking import BlockingClient


def main() -> None:
    """Show them as they come."""
    parser = argparse.ArgumentParser(description="Show counts of views.")
    parser.add_argument("--servers", default="localhost:2229", help="thrift ports, with commas (localhost:2229)")
    parser.add_argument("--for", dest="seconds", type=float, default=60.0, help="for so many seconds (60)")
    parser.add_argument("--until", type=int, help="or until so many views were counted")
    arguments = parser.parse_args()
    ends_s = time.monotonic() + arguments.seconds
    seen: set[bytes] = set()  # a shop would keep keys for as long as its stream may have been down
    views = 0
    with BlockingClient(arguments.servers.split(","), "thrift") as client:
        while (left_s := ends_s - time.monotonic()) > 0 and (arguments.until is None or views < arguments.until):
            with client.reliable_get("popular", timeout=min(left_s, 1.0)) as item:
                if item is None:
                    continue
                key, data = keyed.split(item)
                count = json.loads(data)
                if key in seen:
                    print(f"  {key.decode()} came again", flush=True)
                    continue
                print(f"{count['from']}  {count['page']:<8} {count['views']:>4} views", flush=True)
            seen.add(key)
            views += count["views"]
    print(f"{len(seen)} counts of {views} views")


if __name__ == "__main__":
    main()

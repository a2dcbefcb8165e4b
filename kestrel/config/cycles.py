"""The search for cycles in a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence


def find_cycles(edges: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield cycles, each as its members in order: at least one if there is any.

    The search is depth-first with its own stack, since a file may have a longer chain than Python has stack frames.
    """
    finished: set[str] = set()
    for start in edges:
        way = [start]
        places = {start: 0}
        branches = [iter(edges[start])]
        while way and start not in finished:
            following = next(branches[-1], None)
            if following is None:
                branches.pop()
                finished.add(way[-1])
                del places[way.pop()]
            elif following in places:
                yield way[places[following] :]
            elif following not in finished:
                places[following] = len(way)
                way.append(following)
                branches.append(iter(edges.get(following, ())))

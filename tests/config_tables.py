"""Tables of a configuration, as TOML."""

from __future__ import annotations


def queue(name: str, *settings: str) -> str:
    return "\n".join(["[[queues]]", f"name = '{name}'", *settings, ""])


def alias(name: str, *destinations: str) -> str:
    return f"[[aliases]]\nname = '{name}'\ndestinationQueues = {list(destinations)}\n"

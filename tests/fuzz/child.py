"""The process that fuzzes a target: `python -m tests.fuzz.child TARGET`, with libFuzzer's options.

Only this module needs atheris. It must not import kestrel before atheris, which instruments the package when it is
imported.
"""

from __future__ import annotations

import gc
import importlib
import resource
import sys

import atheris

MAX_ADDRESS_SPACE_BYTES = 3 << 29
"""Limit of the address space. It also bounds memory that is allocated but never used, which is not resident."""


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    name, *options = sys.argv[1:]
    importlib.import_module("kestrel")  # the package chooses its build, which instrumentation must not affect
    with atheris.instrument_imports(include=["kestrel"]):
        from tests.fuzz import target

        chosen = target.load(name)
    repair = chosen.repair

    def mutated(data: bytes, max_bytes: int, seed: int) -> bytes:
        data = atheris.Mutate(data, max_bytes)
        return data if repair is None or seed % 4 == 0 else repair(data)[:max_bytes]

    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE_BYTES, MAX_ADDRESS_SPACE_BYTES))
    arguments = [sys.argv[0], f"-max_len={chosen.max_bytes}", *options]
    atheris.Setup(arguments, chosen.check, custom_mutator=mutated if repair else None)
    gc.collect()
    gc.freeze()  # collections need not traverse the modules
    atheris.Fuzz()


if __name__ == "__main__":
    main()

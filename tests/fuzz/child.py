"""The process that fuzzes one target: `python -m tests.fuzz.child TARGET`, and libFuzzer's options.

Only here is atheris needed. Everything of kestrel is instrumented as it is imported, so this module imports none of it
before.
"""

from __future__ import annotations

import gc
import importlib
import resource
import sys

import atheris

MOST_ADDRESSES = 3 << 29
"""What is asked of the system at once and never touched is no resident memory: it would not be seen else."""


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    name, *options = sys.argv[1:]
    importlib.import_module("kestrel")  # which chooses the build, and must not come before the instrumenting finder
    with atheris.instrument_imports(include=["kestrel"]):
        from tests.fuzz import target

        chosen = target.load(name)
    mend = chosen.mend

    def mutated(data: bytes, most_bytes: int, seed: int) -> bytes:
        data = atheris.Mutate(data, most_bytes)
        return data if mend is None or seed % 4 == 0 else mend(data)[:most_bytes]

    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
    arguments = [sys.argv[0], f"-max_len={chosen.most_bytes}", *options]
    atheris.Setup(arguments, chosen.check, custom_mutator=mutated if mend else None)
    gc.collect()
    gc.freeze()  # what is there now stays; a collection need not look at it
    atheris.Fuzz()


if __name__ == "__main__":
    main()

"""Workers: they take items of queues with reliable reads, and call a function for each.

    from kestrel.worker import Worker

    def handle(item: bytes) -> None: ...

    Worker("localhost", "work", handle, concurrency=4).run()

`kestrel-worker module:function --queue work` does the same from the shell. docs/worker.md describes both.

| module | contents |
|---|---|
| `worker` | `Worker`, for plain functions and coroutine functions |
| `twisted_worker` | `TwistedWorker`, for programs with a reactor |
| `slot` | the loop of a worker, for any client, and its log |
| `cli` | the command `kestrel-worker` |
"""

from __future__ import annotations

from kestrel.worker.slot import WorkerCounts
from kestrel.worker.worker import Worker

__all__ = ["Worker", "WorkerCounts"]

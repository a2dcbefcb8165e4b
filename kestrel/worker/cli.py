"""Command line of kestrel-worker."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from kestrel.escaping import show_name
from kestrel.tls import TlsOptions
from kestrel.tools.arguments import (
    SERVER_OPTIONS,
    argument,
    flag,
    int_in_range,
    make_parser,
    option,
    positive_duration_s,
    wire_duration_s,
    wire_queue_name,
    with_servers,
)
from kestrel.tools.tool_runner import EX_OK, BadUsage, Output, ToolFailed, run
from kestrel.worker.worker import Worker

TOOL: Final = "kestrel-worker"

_DESCRIPTION: Final = """\
Take items of queues, and call a Python function with each. An item is confirmed when its call has ended, and delivered
again if this process dies before. The function gets the item as bytes. It may be a coroutine function of asyncio."""

_EPILOG: Final = """\
examples:
  kestrel-worker tasks:resize --queue images
  kestrel-worker tasks:resize --queue images --queue thumbnails --concurrency 8 --server mq1,mq2
  kestrel-worker tasks:resize --queue images --retries 5 --error-queue images_failed
  kestrel-worker mailer.jobs:Mailer.send --queue mail --protocol thrift --hold 5m

A DURATION has a unit, as 100ms, 1m30s or 2h, or is a number of seconds.

SIGTERM and SIGINT (Ctrl-C) stop the worker: it takes no further items, and ends when the running calls have ended. A
second signal ends it at once, and the items return to their queues.

exit status: 0; 2 if the command line is invalid or there is no such function."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run(TOOL, lambda: _do(argv))


def _parser() -> ArgumentParser:
    function = "the function, in a module that Python finds in the current folder or in its path"
    queue = "take items of this queue; several are asked in turn"
    pause = "pause before the first retry; each further pause is twice as long, up to a minute"
    error_queue = (
        "put items whose calls all failed to this queue (default: return them, so that the server counts them)"
    )
    hold = "time for all calls and pauses of an item; then the server delivers it again; only thrift"
    return make_parser(
        TOOL,
        _DESCRIPTION,
        _EPILOG,
        argument("function", metavar="MODULE:FUNCTION", help=function),
        option("--queue", "NAME", wire_queue_name, queue, action="append", required=True, dest="queues"),
        option("--concurrency", "N", int_in_range(1, 1000), "number of items at a time", 1),
        option("--retries", "N", int_in_range(0, 1000), "how often a failed call is repeated", 3),
        option("--retry-pause", "DURATION", positive_duration_s, pause, "1s"),
        option("--error-queue", "NAME", wire_queue_name, error_queue),
        option("--hold", "DURATION", wire_duration_s, hold, "1m"),
        flag("--log-messages", "log also the messages of exceptions, which may quote items"),
        *SERVER_OPTIONS,
    )


def _do(argv: Sequence[str] | None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    function = load_function(arguments.function)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    worker = with_servers(parser, arguments, lambda servers, tls: _worker(servers, tls, function, arguments))
    _stop_on_signals(worker)
    output = Output()
    queues = ", ".join(show_name(queue) for queue in arguments.queues)
    output.line(f"{TOOL}: calls {arguments.function} for items of {queues}, {arguments.concurrency} at a time")
    output.flush()
    counts = worker.run()
    output.line(f"{TOOL}: stopped; {counts}")
    output.flush()
    return EX_OK


def _worker(
    servers: list[str], tls: TlsOptions | None, function: Callable[[bytes], object], arguments: Namespace
) -> Worker:
    return Worker(
        servers,
        arguments.queues,
        function,
        concurrency=arguments.concurrency,
        protocol=arguments.protocol,
        tls=tls,
        timeout_s=arguments.timeout,
        hold_s=arguments.hold,
        retries=arguments.retries,
        retry_pause_s=arguments.retry_pause,
        error_queue=arguments.error_queue,
        logs_messages=arguments.log_messages,
    )


def _stop_on_signals(worker: Worker) -> None:
    """Stop the worker at the first SIGTERM or SIGINT. The second one has its default effect: it ends the process."""

    def stop(*_: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        worker.stop()
        with suppress(OSError):  # written without a buffer, because a handler may interrupt another write
            os.write(2, b"kestrel-worker: waiting for the running calls; a second signal ends them\n")

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)


def load_function(name: str) -> Callable[[bytes], object]:
    """Import the module of ``MODULE:FUNCTION`` and return the function. Raise `ToolFailed` if there is none."""
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise BadUsage(f"{name!r} is not MODULE:FUNCTION, such as tasks:resize")
    sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _cannot_import(module_name) from None
        raise BadUsage(
            f"there is no module {error.name}; it must be in the current folder, installed, or in PYTHONPATH"
        ) from None
    except Exception:
        raise _cannot_import(module_name) from None
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            raise BadUsage(f"the module {module_name} has no {path}") from None
    if not callable(found):
        raise BadUsage(f"{name} is not a function, but of type {type(found).__name__}")
    return found


def _cannot_import(module_name: str) -> ToolFailed:
    traceback.print_exc()
    return BadUsage(f"the module {module_name} cannot be imported; the traceback is above")


if __name__ == "__main__":
    sys.exit(main())

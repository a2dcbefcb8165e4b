"""Run of a tool: its clock, its output, its exit with a status, and one-line messages instead of tracebacks."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from kestrel.client.errors import (
    BadReply,
    CannotConnect,
    ClientFailure,
    ConnectionFailed,
    NoServer,
    OpenReadsError,
    ServerError,
)
from kestrel.errors import KestrelError
from kestrel.tools.formatting import show_text

EX_OK: Final = 0
EX_FOUND: Final = 1
"""Damage was found, or something could not be read or done."""
EX_USAGE: Final = 2
"""The command line is invalid; argparse uses this status too."""
EX_SERVER: Final = 3
"""A server could not be reached, failed, or refused the request."""
EX_INTERRUPTED: Final = 130
"""SIGINT ended the tool; shells use this status for it."""


class Clock(NamedTuple):
    """A monotonic clock and a sleep function, both in seconds."""

    seconds: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


class ToolFailed(KestrelError):
    """An error that ends the tool. The text says what failed and what to do; `status` is the exit status."""

    def __init__(self, sentence: str, status: int = EX_FOUND) -> None:
        super().__init__(sentence)
        self.status = status


class BadUsage(ToolFailed):
    """The command line is invalid, or does not fit the files or servers that it names."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, EX_USAGE)


class OutputFailed(ToolFailed):
    """Standard output cannot be written."""


def print_error(tool: str, sentence: str) -> None:
    """Write a line to standard error, after the tool's name."""
    sys.stderr.write(f"{tool}: {sentence}\n")
    sys.stderr.flush()


def output_failure(error: OSError) -> Exception:
    """Return the error to raise after a failed write to standard output.

    It is `OutputFailed`, or `error` itself if that is a BrokenPipeError.
    """
    if isinstance(error, BrokenPipeError):
        return error
    return OutputFailed(f"standard output cannot be written: {explain_os_error(error)}")


def run(tool: str, work: Callable[[], int]) -> int:
    """Run `work`, which also reads the command line, and return the exit status.

    If the reader of the output closes the pipe (`| head`), the tool ends with status 0 and no message.
    """
    if sys.stderr is None:  # closed: discard messages, and keep its descriptor from being used by a file
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        return _with_output(work)
    except ToolFailed as failed:
        print_error(tool, str(failed))
        if isinstance(failed, OutputFailed):
            _forget_output()
        return failed.status
    except BrokenPipeError:
        _forget_output()
        return EX_OK
    except KeyboardInterrupt:
        print_error(tool, "interrupted")
        return EX_INTERRUPTED
    except OSError as error:
        print_error(tool, explain_os_error(error))
        return EX_FOUND


def _with_output(work: Callable[[], int]) -> int:
    """Run `work`. If argparse exits, flush its output first, so that a failed write is reported."""
    try:
        return work()
    except SystemExit:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            raise output_failure(error) from None
        raise


def _forget_output() -> None:
    """Discard buffered output, which would fail again when the interpreter exits."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_OS_ERROR_ADVICE: Final = {
    "EMFILE": "allow more open files (ulimit -n)",
    "ENOSPC": "make room on the disk and run this again",
    "EDQUOT": "make room on the disk and run this again",
    "EROFS": "mount it for writing and run this again",
    "EACCES": "run this as the user that the server runs as",
    "EPERM": "run this as the user that the server runs as",
    "EIO": "copy the folder to a good disk with a tool that continues after errors, and check the copy",
}


def explain_os_error(error: OSError) -> str:
    """Return the system's message for an error, with the file if it is known, and advice."""
    name = error.filename
    path = os.fsencode(name).decode("utf-8", "backslashreplace") + ": " if isinstance(name, str | bytes) else ""
    way_out = _OS_ERROR_ADVICE.get(errno.errorcode.get(error.errno or 0, ""))
    return f"{path}{error.strerror or error}" + (f"; {way_out}" if way_out else "")


class Output:
    """Standard output. Raises BrokenPipeError if the reader has closed the pipe, `OutputFailed` on other errors."""

    def __init__(self) -> None:
        if sys.stdout is None:
            raise OutputFailed("standard output is closed: send it somewhere")
        self._stream = sys.stdout.buffer
        self.is_terminal = sys.stdout.isatty()

    def exactly(self, data: bytes) -> None:
        """Write bytes unchanged, without a newline."""
        try:
            self._stream.write(data)
        except OSError as error:
            raise output_failure(error) from None

    def line(self, text: str) -> None:
        self.exactly(text.encode("utf-8", "surrogateescape") + b"\n")

    def lines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.line(text)

    def object(self, value: dict[str, Any]) -> None:
        """Write a JSON object on one line."""
        self.exactly(json.dumps(value).encode("ascii") + b"\n")

    def raw(self, data: bytes) -> None:
        """Write bytes unchanged, followed by a newline."""
        self.exactly(data)
        self.exactly(b"\n")

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise output_failure(error) from None


VERIFICATION_ADVICE: Final = "name its CA with --ca, and the name in its certificate with --server-name"

_ALERT: Final = re.compile(r"(?:ssl|tls)\S* alert ([a-z ]*[a-z])")
_ANOTHER_CERTIFICATE: Final = "pass another one with --cert and --key"
_REFUSALS_BY_ALERT: Final = {
    "certificate required": "this server requires a client certificate: pass --cert and --key",
    "handshake failure": "this server refuses the connection: it may require a client certificate (--cert and --key)",
    "unknown ca": f"this server does not trust the CA of the client certificate: {_ANOTHER_CERTIFICATE}",
    "certificate expired": f"the client certificate has expired: {_ANOTHER_CERTIFICATE}",
    "bad certificate": f"this server refuses the client certificate: {_ANOTHER_CERTIFICATE}",
}


def explain_tls_refusal(failure: Exception, way_without_tls: str) -> str | None:
    """Return why a server refuses TLS with this client and what to do, or None for other failures.

    OpenSSL's message is in the failure or its cause, in a form that depends on the client.
    """
    text = f"{failure} {failure.__cause__}".replace("_", " ").lower()
    if "wrong version number" in text:
        return f"this port does not use TLS: {way_without_tls}"
    alert = _ALERT.search(text)
    return None if alert is None else _REFUSALS_BY_ALERT.get(alert[1])


class ConnectionContext(NamedTuple):
    """How a tool reaches its servers: the option, the protocol and whether it uses TLS."""

    option: str
    """Option that names the servers, such as ``--server``."""
    protocol: str
    is_tls: bool
    prefix: str = ""
    """Text before the server's name in messages, if the command also uses other servers."""

    @property
    def protocol_question(self) -> str:
        """Question for the user: whether the server speaks this protocol, with or without TLS."""
        return f"does it speak {self.protocol} there, {'with' if self.is_tls else 'without'} TLS?"

    def failed(self, failure: ClientFailure, where: str) -> ToolFailed:
        """Return the error to report for a failure. `where` is the server, or ``a server`` if it is unknown."""
        is_of_server = isinstance(failure, ConnectionFailed | OpenReadsError | ServerError)
        return ToolFailed(self._sentence(failure, where), EX_SERVER if is_of_server else EX_FOUND)

    def _sentence(self, failure: ClientFailure, where: str) -> str:
        place, reason = self.prefix + show_text(where), show_text(str(failure).removeprefix(f"{where}: "))
        refusal = explain_tls_refusal(failure, f"leave out --tls, or name another port with {self.option}")
        match failure:
            case ConnectionFailed() if self.is_tls and refusal is not None:
                return f"{place}: {refusal}"
            case NoServer(__cause__=None):
                return f"{reason}; is one running that joins it? name a server with {self.option}"
            case NoServer():
                way_out = f"is ZooKeeper running? give it more time with --timeout, or name a server with {self.option}"
                return f"the members of the server set are not known: {reason}; {way_out}"
            case CannotConnect(__cause__=OSError() | ValueError() as cause):
                # The text is the address and the system's message with its errno, which is left out.
                which = show_text(str(failure).removesuffix(str(cause)).removesuffix(": ") or where)
                return f"cannot connect to {which}: {show_text(_in_words(cause))}; {self._advice(cause)}"
            case BadReply():
                return f"{place}: {reason}; {self.protocol_question} name another port with {self.option}"
            case ConnectionFailed(__cause__=TimeoutError()):
                return f"{place}: {reason}; give it more time with --timeout; {self.protocol_question}"
            case ConnectionFailed():
                return f"{place}: {reason}; is the server still running? {self.protocol_question}"
            case OpenReadsError():
                return f"{place}: {reason}; were reads open for longer than its timeout?"
            case ServerError():
                return f"{place} refused or failed: {reason}"
            case _:
                return f"{place}: {reason}"

    def _advice(self, cause: OSError | ValueError) -> str:
        match cause:
            case ssl.SSLCertVerificationError():
                return VERIFICATION_ADVICE
            case ssl.SSLError() | ConnectionResetError():
                return self.protocol_question
            case socket.gaierror() | ValueError():
                return f"name another with {self.option}"
            case TimeoutError():
                return f"name another with {self.option}, or give it more time with --timeout; {self.protocol_question}"
            case _:
                return f"is the server running? name another with {self.option}"


def _in_words(cause: OSError | ValueError) -> str:
    match cause:
        case ssl.SSLCertVerificationError(verify_message=str(message)):
            return f"certificate verify failed: {message.rstrip('.')}"
        case ssl.SSLError(reason=str(reason)) if reason:
            return reason.replace("_", " ").lower()
        case OSError(strerror=str(words)) if words:
            return words
        case _:
            return str(cause)

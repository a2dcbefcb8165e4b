"""Error messages, with advice, for servers that cannot be reached or fail. All tools use them."""

from __future__ import annotations

import socket
import ssl
from typing import NamedTuple

from kestrel.client.errors import (
    BadReply,
    CannotConnect,
    ClientFailure,
    ConnectionFailed,
    NoServer,
    OpenReadsError,
    ServerError,
)
from kestrel.tools.formatting import show_text
from kestrel.tools.tool_runner import EX_FOUND, EX_SERVER, ToolFailed


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
        place, reason = self.prefix + show_text(where), show_text(str(failure).removeprefix(f"{where}: "))
        match failure:
            case NoServer(__cause__=None):
                way_out = f"is one running that joins it? name a server with {self.option}"
                return ToolFailed(f"{reason}; {way_out}", EX_SERVER)
            case NoServer():
                way_out = f"is ZooKeeper running? give it more time with --timeout, or name a server with {self.option}"
                return ToolFailed(f"the members of the server set are not known: {reason}; {way_out}", EX_SERVER)
            case CannotConnect(__cause__=OSError() | ValueError() as cause):
                # The text is the address and the system's message with its errno, which is left out.
                which = show_text(str(failure).removesuffix(str(cause)).removesuffix(": ") or where)
                said = show_text(_in_words(cause))
                return ToolFailed(f"cannot connect to {which}: {said}; {self._advice(cause)}", EX_SERVER)
            case BadReply():
                return ToolFailed(
                    f"{place}: {reason}; {self.protocol_question} name another port with {self.option}", EX_SERVER
                )
            case ConnectionFailed(__cause__=TimeoutError()):
                return ToolFailed(
                    f"{place}: {reason}; give it more time with --timeout; {self.protocol_question}", EX_SERVER
                )
            case ConnectionFailed():
                return ToolFailed(
                    f"{place}: {reason}; is the server still running? {self.protocol_question}", EX_SERVER
                )
            case OpenReadsError():
                return ToolFailed(f"{place}: {reason}; were reads open for longer than its timeout?", EX_SERVER)
            case ServerError():
                return ToolFailed(f"{place} refused or failed: {reason}", EX_SERVER)
            case _:
                return ToolFailed(f"{place}: {reason}", EX_FOUND)

    def _advice(self, cause: OSError | ValueError) -> str:
        match cause:
            case ssl.SSLCertVerificationError():
                return "name its CA with --ca, and the name in its certificate with --server-name"
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

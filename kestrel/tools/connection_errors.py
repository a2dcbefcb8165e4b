"""Error messages, with advice, for servers that cannot be reached or fail. All tools use them."""

from __future__ import annotations

import re
import socket
import ssl
from typing import Final, NamedTuple

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
        place, reason = self.prefix + show_text(where), show_text(str(failure).removeprefix(f"{where}: "))
        refusal = explain_tls_refusal(failure, f"leave out --tls, or name another port with {self.option}")
        match failure:
            case ConnectionFailed() if self.is_tls and refusal is not None:
                return ToolFailed(f"{place}: {refusal}", EX_SERVER)
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

"""The refusals after which a server closes the connection, compared with a server."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from kestrel.client.dialect import closes_connection, never_closes_connection
from kestrel.client.errors import Refused
from kestrel.config.load import loads
from kestrel.testing.server import MemoryServer

CONFIG = """
[[queues]]
name = "theirs"
whiteListClientIdForDequeue = ["10.9.8.7"]
"""

HANGS_UP = [
    b"set work 0 0 1\r\na\r\n",  # the server is ReadOnly
    b"get theirs\r\n",
    b"status sleepy\r\n",
    b"set work 0 0 999999999\r\n",
]
GOES_ON = [b"get\r\n", b"get a.b\r\n", b"set work x 0 1\r\na\r\n", b"get work/t=x\r\n"]


@pytest.mark.parametrize("request_", HANGS_UP + GOES_ON)
def test_client_knows_which_refusals_close_the_connection(request_: bytes) -> None:
    server = MemoryServer(clock=Clock(), config=loads(CONFIG))
    assert server.connect().ask(b"status readonly\r\n") == b"END\r\n"
    client = server.connect()
    reply = client.ask(request_ + b"version\r\n").decode()
    refusal, _, behind = reply.partition("\r\n")
    error = Refused(refusal.partition(" ")[2])
    assert closes_connection(error) == client.is_closed == (behind == "") == (request_ in HANGS_UP)
    assert not never_closes_connection(error)

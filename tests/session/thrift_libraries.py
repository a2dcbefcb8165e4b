"""Thrift clients of other projects on a transport of the test, with a common interface.

A transport has `write(bytes)`, `flush()` and `read(size)`. The clients add framing and the binary protocol.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import as_file, files
from types import ModuleType
from typing import Any

import pytest
import thriftpy2
from thrift.protocol.TBinaryProtocol import TBinaryProtocol, TBinaryProtocolAccelerated
from thrift.Thrift import TApplicationException
from thrift.transport.TTransport import TFramedTransport, TTransportBase
from thriftpy2.protocol.binary import TBinaryProtocol as PyBinaryProtocol
from thriftpy2.protocol.cybin import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException as PyApplicationException
from thriftpy2.thrift import TClient
from thriftpy2.transport import TCyFramedTransport
from thriftpy2.transport.framed import TFramedTransport as PyFramedTransport

from tests.child import PATIENCE_S

IDL = files("kestrel.protocols") / "kestrel.thrift"

Connect = Callable[[Any, bool], Any]
"""Makes a client with the methods of the service from a transport and whether it uses the strict form."""

REFUSALS = (TApplicationException, PyApplicationException)
"""Exceptions that the clients raise if the server refuses; `type` and `message` tell why."""


def generated(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Return the module that Apache's compiler generates from the packaged IDL."""
    if "kestrel_thrift" not in sys.modules:
        folder = tmp_path_factory.mktemp("generated")
        with as_file(IDL) as path:
            subprocess.run(["thrift", "--gen", "py", "-strict", "-out", folder, path], check=True, timeout=PATIENCE_S)
        sys.path.insert(0, str(folder))
        try:
            importlib.import_module("kestrel_thrift")
        finally:
            sys.path.remove(str(folder))
    return importlib.import_module("kestrel_thrift.Kestrel")


def loaded() -> ModuleType:
    """Return the service as thriftpy2 reads it from the packaged IDL."""
    with as_file(IDL) as path:
        module: ModuleType = thriftpy2.load(str(path), "kestrel_loaded_thrift")
    return module


class _ApacheTransport(TTransportBase):
    """The other methods that Apache's classes need of a transport."""

    def __init__(self, transport: Any) -> None:
        self.read = transport.read
        self.write = transport.write
        self.flush = transport.flush


def apache(service: ModuleType, *, accelerated: bool) -> Connect:
    """Return Apache's generated client, with its protocol in Python or in C."""
    protocol = TBinaryProtocolAccelerated if accelerated else TBinaryProtocol

    def connect(transport: Any, is_strict: bool) -> Any:
        framed = TFramedTransport(_ApacheTransport(transport))
        return service.Client(protocol(framed, strictRead=is_strict, strictWrite=is_strict))

    return connect


def thriftpy(*, accelerated: bool) -> Connect:
    """Return thriftpy2's client, with its protocol in Python or in C."""
    transport_class, protocol = (
        (TCyFramedTransport, TCyBinaryProtocol) if accelerated else (PyFramedTransport, PyBinaryProtocol)
    )
    service = loaded().Kestrel

    def connect(transport: Any, is_strict: bool) -> Any:
        return TClient(service, protocol(transport_class(transport), strict_read=is_strict, strict_write=is_strict))

    return connect


CLIENTS = [
    pytest.param("apache", marks=pytest.mark.needs("thrift")),
    pytest.param("apache in C", marks=pytest.mark.needs("thrift")),
    "thriftpy2",
    "thriftpy2 in C",
]
"""The names that `connector` accepts."""


def connector(name: str, tmp_path_factory: pytest.TempPathFactory) -> Connect:
    """Return the function that makes a client of this kind."""
    accelerated = name.endswith(" in C")
    if name.startswith("apache"):
        return apache(generated(tmp_path_factory), accelerated=accelerated)
    return thriftpy(accelerated=accelerated)

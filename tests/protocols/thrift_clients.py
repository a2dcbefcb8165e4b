"""Thrift clients that others made, on a transport that a test gives them, as one kind of thing.

A transport has `write(bytes)`, `flush()` and `read(size)`; the clients put framing and the binary protocol on it.
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
"""A transport, and whether the strict form is spoken, to a client with the methods of the service."""

REFUSALS = (TApplicationException, PyApplicationException)
"""What the clients raise where the server refuses; `type` and `message` tell why."""


def generated(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The service's module as Apache's compiler generates it from the shipped IDL."""
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
    """The service as thriftpy2 reads it from the shipped IDL."""
    with as_file(IDL) as path:
        module: ModuleType = thriftpy2.load(str(path), "kestrel_loaded_thrift")
    return module


class _ApacheTransport(TTransportBase):
    """What Apache's classes want of a transport besides."""

    def __init__(self, transport: Any) -> None:
        self.read = transport.read
        self.write = transport.write
        self.flush = transport.flush


def apache(service: ModuleType, *, accelerated: bool) -> Connect:
    """Apache's generated client, on its protocol in Python or in C."""
    protocol = TBinaryProtocolAccelerated if accelerated else TBinaryProtocol

    def connect(transport: Any, is_strict: bool) -> Any:
        framed = TFramedTransport(_ApacheTransport(transport))
        return service.Client(protocol(framed, strictRead=is_strict, strictWrite=is_strict))

    return connect


def thriftpy(*, accelerated: bool) -> Connect:
    """thriftpy2's client, on its protocol in Python or in C."""
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
"""The names that `connector` knows."""


def connector(name: str, tmp_path_factory: pytest.TempPathFactory) -> Connect:
    """How to make a client of that kind."""
    accelerated = name.endswith(" in C")
    if name.startswith("apache"):
        return apache(generated(tmp_path_factory), accelerated=accelerated)
    return thriftpy(accelerated=accelerated)

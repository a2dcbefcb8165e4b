"""Twisted plugin that registers `twistd kestrel`. This folder and its parent must not have an `__init__.py`."""

from twisted.application.service import ServiceMaker

kestrel = ServiceMaker(
    "kestrel",
    "kestrel.server.maker",
    "a durable message queue server with the memcache, text and thrift protocols",
    "kestrel",
)

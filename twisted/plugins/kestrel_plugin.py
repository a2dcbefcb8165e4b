"""Makes `twistd kestrel` known to twistd. Neither this folder nor the one above may have an `__init__.py`."""

from twisted.application.service import ServiceMaker

kestrel = ServiceMaker(
    "kestrel",
    "kestrel.server.maker",
    "a durable message queue server that speaks the memcache protocol",
    "kestrel",
)

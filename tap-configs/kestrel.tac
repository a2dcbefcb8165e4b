# twistd --nodaemon --python tap-configs/kestrel.tac
#
# For those who run several services in one process, or want to build the configuration in Python.
from twisted.application.service import Application
from twisted.internet import reactor

from kestrel.config.load import load
from kestrel.server.service import KestrelService

application = Application("kestrel")
KestrelService(reactor, load("tap-configs/development.toml")).setServiceParent(application)

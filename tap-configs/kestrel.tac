# twistd --nodaemon --python tap-configs/kestrel.tac
#
# For running several services in one process. Options, signals and exit statuses are those of `twistd kestrel`. The log
# is twistd's, unless `[logging]` has a `file`. Paths are relative to the folder that twistd is started in.
from twisted.application.service import Application

from kestrel.server.maker import Options, makeService

options = Options()
options.parseOptions(["--config", "tap-configs/development.toml"])

application = Application("kestrel")
makeService(options).setServiceParent(application)

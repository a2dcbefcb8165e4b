"""Kestrel: a durable message queue server on Twisted.

This module stays light, so that a worker process that only wants to read journals imports no Twisted.
"""

__version__ = "1.0.0"

import kestrel.compiled  # noqa: F401  chooses the build before any other module is imported

"""Kestrel: a durable message queue server on Twisted.

This module imports no Twisted, so that worker processes that only read journals start fast.
"""

__version__ = "1.0.0"

import kestrel.compiled  # noqa: F401  chooses the build before any other module is imported

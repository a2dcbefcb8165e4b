"""The refusals after which a server always closes the connection and has not processed any later request.

On memcache some refusals close the connection and others do not, and the error word does not tell which. A message that
is not listed here, such as one of another server, is assumed not to close it: whether later requests were processed is
then unknown. On thrift only an unreadable frame closes the connection.
"""

from __future__ import annotations

import re
from typing import Final

from kestrel.client.errors import Refused

_CLOSING_ERRORS: Final = re.compile(
    r"the server is \w+"
    r"|too many connections to (?:read|write) on this one"
    r"|this client may not .+"
    r"|there is no such status; .+"
    r"|item too large",
    re.DOTALL,
)


def closes_connection(refusal: Refused) -> bool:
    """Return True if a memcache server that refuses in these words processes nothing more on the connection."""
    return _CLOSING_ERRORS.fullmatch(str(refusal)) is not None


def never_closes_connection(_: Refused) -> bool:
    """Return False: a thrift server continues after every refusal."""
    return False

"""With which refusals a server always hangs up, and so has done nothing of what came behind.

On memcache some refusals end the connection and others do not, and the word in front does not say which. A sentence
that is not known here, such as another server's, is taken for one behind which the server goes on: then nobody knows.
On thrift the server goes on behind all of them but for frames that it cannot read.
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
    """Whether a memcache server that says so carries out nothing more on that connection."""
    return _CLOSING_ERRORS.fullmatch(str(refusal)) is not None


def never_closes_connection(_: Refused) -> bool:
    """The same of a thrift server."""
    return False

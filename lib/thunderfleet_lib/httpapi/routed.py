"""Headers between the router and the gateways of groups. In streams they are comments, which clients ignore. Pure."""

import functools
import hashlib
import re
from typing import Final

from thunderfleet_crds.vocabulary import KeyPriority

ROUTED: Final = "X-Thunderfleet-Routed"
"""On requests of routers: requests the two headers below."""
TOKENS: Final = "X-Thunderfleet-Tokens"
"""On whole responses, and at the end of streams: tokens of the prompt and of the answer, ``12,34``."""
GROUP: Final = "X-Thunderfleet-Group"
"""On errors, and at the end of streams: FAILED if the group failed while it worked on the request."""
FAILED: Final = "failed"
TURN: Final = "X-Thunderfleet-Turn"
"""On requests of routers: the priority of the key, and an id of the caller that is the same at all routers (``turn``)."""
ANSWERED: Final = "X-Thunderfleet-Answered-By"
"""On responses of the router: number of the group that answered."""

_TURN: Final = re.compile(r"([A-Za-z]{1,16}),([0-9a-f]{16})")


@functools.lru_cache(maxsize=4096)
def turn(priority: KeyPriority, caller_id: str) -> str:
    """The value of ``TURN``. The id is a hash, so it has one length and holds no key."""
    return f"{priority},{hashlib.sha256(caller_id.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"


def read_turn(text: str) -> tuple[KeyPriority, str]:
    """Priority and caller of a value of ``TURN``; Normal and no caller if it is none."""
    found = _TURN.fullmatch(text)
    if found is None or found[1] not in set(KeyPriority):
        return KeyPriority.NORMAL, ""
    return KeyPriority(found[1]), found[2]

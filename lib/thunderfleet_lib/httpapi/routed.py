"""Headers between the router and the gateways of groups. In streams they are comments, which clients ignore. Pure."""

from typing import Final

ROUTED: Final = "X-Thunderfleet-Routed"
"""On requests of routers: asks for the two below."""
TOKENS: Final = "X-Thunderfleet-Tokens"
"""On whole responses, and at the end of streams: tokens of the prompt and of the answer, ``12,34``."""
GROUP: Final = "X-Thunderfleet-Group"
"""On errors, and at the end of streams: FAILED if the group failed while it worked on the request."""
FAILED: Final = "failed"
ANSWERED: Final = "X-Thunderfleet-Answered-By"
"""On responses of the router: number of the group that answered."""

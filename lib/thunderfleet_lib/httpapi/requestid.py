"""The id of a request, by which the logs of router and gateway name it."""

import os
import re
from collections.abc import Mapping
from typing import Final

HEADER: Final = "X-Request-Id"
_ALLOWED: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def request_id(headers: Mapping[str, str]) -> str:
    """The client's id if it is a plain word, or a new one."""
    given = headers.get(HEADER, "")
    return given if _ALLOWED.fullmatch(given) else f"req-{os.urandom(16).hex()}"

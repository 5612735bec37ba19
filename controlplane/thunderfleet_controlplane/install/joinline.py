"""The text that `thunderfleet join` takes, with everything that another Mac needs. Pure."""

import base64
import binascii
import ipaddress
import json
import re
from dataclasses import dataclass

PREFIX = "tf1-"
LIMIT = 2048
ADDRESSES = 16
NAMES = 4
KEY_BYTES = 32
NAME_LENGTH = 64
_NAME = re.compile(rf"(?=.{{1,{NAME_LENGTH}}}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class JoinLine:
    """``addresses`` and ``port`` of the API servers, a bootstrap token, and the hash of the CA's public key.

    ``names``: DNS names of the API servers, which stay valid when addresses change. ``key``: the key with which the cluster's
    keys are encrypted for transfer; empty in a line for Macs without a control plane.
    """

    addresses: tuple[str, ...]
    port: int
    token: str
    ca_hash: str
    names: tuple[str, ...] = ()
    key: bytes = b""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Possible locations of the API servers, in the order in which to try them."""
        return (*self.addresses, *self.names)

    def encode(self) -> str:
        """One word for a command line."""
        content: dict[str, object] = {"a": list(self.addresses), "p": self.port, "t": self.token, "h": self.ca_hash}
        if self.names:
            content["n"] = list(self.names)
        if self.key:
            content["k"] = base64.urlsafe_b64encode(self.key).decode()
        data = json.dumps(content, separators=(",", ":")).encode()
        return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode(text: str) -> JoinLine:
    """Parses the text of ``encode``. Raises ValueError."""
    if not text.startswith(PREFIX) or len(text) > LIMIT:
        raise ValueError(f"this is not a line that `thunderfleet init` or `token create` printed, which begins with {PREFIX}")
    body = text.removeprefix(PREFIX)
    try:
        content = json.loads(base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True))
        addresses = tuple(str(ipaddress.ip_address(one)) for one in content["a"])
        port, token, ca_hash = content["p"], content["t"], content["h"]
        names = tuple(map(str, content.get("n", ())))
        key = base64.b64decode(content.get("k", ""), altchars=b"-_", validate=True)
        complete = 0 < len(addresses) <= ADDRESSES and isinstance(port, int) and 0 < port < 65536
        complete = complete and _TOKEN.fullmatch(token) is not None and _HASH.fullmatch(ca_hash) is not None
        complete = complete and len(names) <= NAMES and all(map(_NAME.fullmatch, names)) and len(key) in (0, KEY_BYTES)
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        complete = False
    if not complete:
        raise ValueError("the join line is incomplete; copy all of it, as `thunderfleet init` or `token create` printed it")
    return JoinLine(addresses, port, token, ca_hash, names, key)

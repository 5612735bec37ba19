"""The local cluster's HTTP proxy for clients that build their requests themselves."""

import base64
from urllib.parse import urlsplit


def proxy_headers(url: str) -> dict[str, str]:
    """The header that carries the token in the proxy's URL."""
    parts = urlsplit(url)
    credentials = base64.b64encode(f"{parts.username}:{parts.password}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {credentials}"}

"""Which requests are refused regardless of the caller, and the headers of every response. Pure.

A browser lets any web page send requests to this machine. ``Origin`` and ``Sec-Fetch-Site`` identify that page, and ``Host`` is
the name that the browser resolved: with DNS rebinding, a name of the attacker.
"""

from collections.abc import Mapping
from typing import Final

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Scripts and styles only from files of this server; no text becomes markup or a script."""
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
MAX_KEY: Final = 4096


def loopback_hosts(port: int) -> frozenset[str]:
    """The values of ``Host`` under which a page on this machine is reached."""
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))


def refusal(headers: Mapping[str, str], hosts: frozenset[str] | None, scheme: str) -> str | None:
    """Why a request is refused; None if it is not. ``hosts``: allowed values of ``Host``; None for all."""
    host = headers.get("Host", "")
    if hosts is not None and host.lower() not in hosts:
        return f"the host must be one of {', '.join(sorted(hosts))}"
    origin = headers.get("Origin")
    if origin is not None and origin.lower() != f"{scheme}://{host}".lower():
        return "requests from pages of another origin are not allowed"
    if headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        return "requests from pages of another site are not allowed"
    return None


def bearer(headers: Mapping[str, str]) -> str:
    """The credential of a request; "" without one."""
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    return given.strip()[:MAX_KEY] if scheme.lower() == "bearer" else ""

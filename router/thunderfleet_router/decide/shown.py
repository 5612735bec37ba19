"""The live page of the router: its host names, the checks of a token, and the contents for the holder of an API key. Pure.

DNS rebinding makes a browser send requests of an attacker's page to this router, with a host name of the attacker in ``Host``.
An IP address in ``Host`` cannot come from DNS rebinding.
"""

import base64
import binascii
import ipaddress
import json
from collections.abc import Collection, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from thunderfleet_router.decide.callers import Caller
from thunderfleet_router.decide.catalog import Catalog, Deployment, Outlook

AUDIENCE: Final = "thunderfleet-page"
"""Audience of viewers' tokens, which are for this page only: the API server does not accept them, and the page accepts no
others."""
MAX_TOKEN: Final = 4096
MAX_SHOWN: Final = 1000
_HEALTH: Final = {
    Outlook.READY: "good",
    Outlook.COMING: "doubtful",
    Outlook.ASLEEP: "idle",
    Outlook.OFF: "idle",
    Outlook.FAILED: "bad",
}


def host_names(given: Iterable[str]) -> frozenset[str]:
    """The names under which the page is served. ``given``: names, names with a port, or URLs."""
    found = {"localhost"}
    for one in given:
        name = (urlsplit(one if "//" in one else f"//{one}").hostname or "").rstrip(".")
        if name:
            # A Mac's own name in its network; DNS servers of others cannot answer for .local.
            found |= {name, f"{name}.local"} if "." not in name else {name}
    return frozenset(found)


def host_refused(host: str, names: Collection[str]) -> bool:
    """Whether ``Host`` is neither an IP address nor one of these names."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return True
    if name.rstrip(".") in names:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return True
    return False


def token_problem(token: str, now: float) -> str:
    """Why a token is refused without a review, judged by its own claims; "" if it must be reviewed."""
    parts = token.split(".")
    wrong = "the credential is neither an API key that a model accepts nor a token of a viewer (docs/page.md)"
    if len(token) > MAX_TOKEN or len(parts) != 3:
        return wrong
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return wrong
    if not isinstance(claims, dict):
        return wrong
    audiences, until = claims.get("aud"), claims.get("exp")
    if AUDIENCE not in ([audiences] if isinstance(audiences, str) else audiences if isinstance(audiences, list) else []):
        return f"the token is not for this page: create one with `kubectl create token NAME --audience={AUDIENCE}`"
    if not isinstance(until, int) or until <= now:
        return f"the token has expired: create another with `kubectl create token NAME --audience={AUDIENCE}`"
    return ""


def own_models(catalog: Catalog, caller: Caller) -> dict[str, dict[str, Any]]:
    """Entities for the holder of a key, by id: the models that accept the key, without Macs, cables and conditions."""
    found = [catalog.deployments[name] for name in sorted(catalog.deployments)]
    own = [one for one in found if one.uid in caller.grants][:MAX_SHOWN]
    return {f"model/{one.full_name}": _model(one) for one in own}


def _model(one: Deployment) -> dict[str, Any]:
    return {
        "id": f"model/{one.full_name}",
        "name": one.full_name,
        "health": _HEALTH[one.outlook],
        "model": one.model,
        "ready": sum(group.ready for group in one.groups),
        "wanted": len(one.groups),
        "transport": "",
        "tokensPerSecond": "",
        # A request wakes a model that sleeps.
        "serves": one.outlook in (Outlook.READY, Outlook.ASLEEP),
        "key": one.requires_key,
        "groups": [],
        "copies": [],
        "problem": "" if one.outlook is Outlook.READY else one.message or one.outlook.value,
    }

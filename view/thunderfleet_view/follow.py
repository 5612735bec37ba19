"""Following a ModelDeployment: what it waits for, in one sentence. Pure."""

import re
from typing import Any

Json = dict[str, Any]

CONDITIONS = ("ModelResolved", "Placed", "Bootstrapped", "Ready")
"""In the order in which they become true."""
PASSING = frozenset(("Resolving", "Quantizing", "RateLimited"))
"""Reasons of ModelResolved that pass by themselves."""
# The scheduler's message lists every node, but only the missing room on the chosen Mac is relevant.
_UNSCHEDULED = re.compile(
    r"(?:waiting for the scheduler to bind )?pod (\S+)(?: to (\S+?))?: \d+/\d+ nodes are available.*", re.DOTALL
)


def condition(deployment: Json, name: str) -> Json:
    """A condition of the deployment; empty if it is not reported yet."""
    conditions: list[Json] = deployment.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == name), {})


def waiting_for(deployment: Json) -> str:
    """The first condition that is not true, with its message."""
    for name in CONDITIONS:
        found = condition(deployment, name)
        if found.get("status") != "True":
            return f"{name}: {without_scheduler_noise(str(found.get('message') or found.get('reason') or 'not reported yet'))}"
    return "waiting for the operator to report on the last change"


def without_scheduler_noise(message: str) -> str:
    """``message`` with one sentence in place of the scheduler's list of nodes."""
    found = _UNSCHEDULED.search(message)
    if found is None:
        return message
    where = found[2] or "its Mac"
    return (
        f"{message[: found.start()]}pod {found[1]} waits until {where} has room for it, for example when the previous pod has "
        "ended"
    )


def is_ready(deployment: Json, parallelism: str | None = None) -> bool:
    """Whether the newest spec is Ready, with ``parallelism`` if given."""
    ready = condition(deployment, "Ready")
    current = ready.get("observedGeneration") == deployment["metadata"]["generation"]
    groups = deployment.get("status", {}).get("groups", [])
    split = parallelism is None or (bool(groups) and groups[0].get("parallelism") == parallelism)
    return ready.get("status") == "True" and current and split


def is_asleep(deployment: Json) -> bool:
    """Whether the newest spec is asleep, so that a request to a router starts it."""
    ready = condition(deployment, "Ready")
    return ready.get("reason") == "Asleep" and ready.get("observedGeneration") == deployment["metadata"]["generation"]


def obstacle(deployment: Json) -> str | None:
    """Why the newest spec cannot be placed without a change; None if it may still be placed."""
    for name in ("ModelResolved", "Placed"):
        found = condition(deployment, name)
        current = found.get("observedGeneration") == deployment["metadata"]["generation"]
        if found.get("reason") in PASSING:
            return None
        if found.get("status") == "False" and current:
            return f"{found.get('reason')}: {found.get('message')}"
    if any(group.get("state") == "GaveUp" for group in deployment.get("status", {}).get("groups", [])):
        return f"GaveUp: {condition(deployment, 'Degraded').get('message') or 'all restarts are used'}"
    return None

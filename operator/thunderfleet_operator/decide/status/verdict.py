"""The status of a condition, with its reason and message."""

from collections.abc import Iterable
from typing import NamedTuple

from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.reasons import Reason

MESSAGE_LENGTH = 1500


class Verdict(NamedTuple):
    """One condition's status (None: Unknown), reason and message."""

    status: bool | None
    reason: str
    message: str


def no_groups(deployment: ModelDeployment) -> tuple[str, str]:
    """Reason and message of every condition while no group should run."""
    if deployment.spec.suspend:
        return Reason.SUSPENDED, "spec.suspend is true"
    if deployment.spec.autoscaling is not None:
        why = deployment.status.autoscaling.message if deployment.status.autoscaling is not None else ""
        return Reason.ASLEEP, f"no group runs{f': {why}' if why else ''}; a request to a router starts one"
    return Reason.SCALED_TO_ZERO, "spec.replicas is 0"


def joined(parts: Iterable[str]) -> str:
    """Parts of a message, each once, cut to its length."""
    text = "; ".join(dict.fromkeys(part for part in parts if part))
    return text if len(text) <= MESSAGE_LENGTH else text[: MESSAGE_LENGTH - 1] + "…"

"""Why a ModelDeployment is not woken, for the clients whose requests wait."""

from collections.abc import Mapping

from thunderfleet_crds.exchange.routing import DemandReport, Refusal
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.meta.conditions import find_condition
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType

PLACED_AGAIN_SECONDS = 30
"""A ModelDeployment that cannot be placed may fit after this time, because others may have made room."""
MESSAGE_LENGTH = 1024


def refusals(report: DemandReport, deployments: Mapping[str, ModelDeployment | None]) -> tuple[Refusal, ...]:
    """Returns why each of the ModelDeployments in a report cannot be woken. ``deployments``: by ``namespace/name``."""
    found = []
    for demand in report.demands:
        if not demand.wake:
            continue
        deployment = deployments.get(f"{demand.namespace}/{demand.deployment}")
        current = deployment if deployment is not None and deployment.metadata.uid == demand.uid else None
        refusal = _refusal(demand.namespace, demand.deployment, current)
        if refusal is not None:
            found.append(refusal)
    return tuple(found)


def _refusal(namespace: str, name: str, deployment: ModelDeployment | None) -> Refusal | None:
    called = f"ModelDeployment {namespace}/{name}"
    why, after = None, None
    if deployment is None:
        why = f"{called} no longer exists"
    elif deployment.spec.suspend:
        why = f"{called} is suspended: its owner can set spec.suspend to false"
    elif not deployment.wanted_groups and not deployment.wakes:
        why = f"{called} has no replicas: its owner can set spec.replicas to 1 or more"
    else:
        placed = find_condition(deployment.status.conditions, ConditionType.PLACED)
        if deployment.wanted_groups and placed is not None and placed.status is ConditionStatus.FALSE and placed.message:
            why, after = f"{called}: {placed.message}", PLACED_AGAIN_SECONDS
    if why is None:
        return None
    return Refusal(namespace=namespace, deployment=name, message=why[:MESSAGE_LENGTH], retry_after_seconds=after)

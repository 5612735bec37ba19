"""Why the API server refuses an object of a group, and what to do: its answer as a reason and a message. Pure."""

import re

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.names import RESOURCE_GPU_MEMORY
from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.kube import ApiError
from thunderfleet_lib.quantity import to_bytes

from thunderfleet_operator.decide.status.outcome import Blocked

_QUOTA = re.compile(r"exceeded quota: (?P<name>\S+), requested: (?P<asked>\S+), used: (?P<used>\S+), limited: (?P<hard>\S+)")
_GPU_MEMORY = f"requests.{RESOURCE_GPU_MEMORY}"
GIB = 1024**3


def of_plan(plan: Plan, error: ApiError) -> Blocked:
    """Why there is no ConfigMap for a plan."""
    if error.status == 409:
        return _taken(error)
    return _quota(plan, error) or Blocked(Reason.FORBIDDEN, str(error))


def of_pods(plan: Plan, error: ApiError) -> Blocked:
    """Why there are no pods or no Secret for a plan."""
    if error.status == 409:
        return _taken(error)
    if "violates PodSecurity" in error.message:
        command = f"kubectl label namespace {plan.namespace} pod-security.kubernetes.io/enforce=privileged --overwrite"
        return Blocked(Reason.POD_SECURITY_FORBIDDEN, f"namespace {plan.namespace} does not allow runner pods; run: {command}")
    return _quota(plan, error) or Blocked(Reason.POD_REFUSED, f"the API server rejected the runner pods: {error.message}")


def _taken(error: ApiError) -> Blocked:
    text = f"{error.message}, and the operator did not create it: delete it, or create this ModelDeployment under another name"
    return Blocked(Reason.NAME_TAKEN, text)


def _quota(plan: Plan, error: ApiError) -> Blocked | None:
    """None if no ResourceQuota is the cause."""
    found = _QUOTA.search(error.message)
    if found is None:
        return None
    name = found["name"]
    asked, used, hard = (_amounts(found[part]) for part in ("asked", "used", "hard"))
    text = "; ".join(
        f"{resource}: a pod requests {_show(resource, amount)}, pods and other objects use "
        f"{_show(resource, used.get(resource, '0'))} of {_show(resource, hard.get(resource, '0'))}"
        for resource, amount in asked.items()
    )
    return Blocked(
        Reason.QUOTA_EXCEEDED,
        f"ResourceQuota {name} of namespace {plan.namespace} is used up: {text}; raise it "
        f"(`kubectl edit resourcequota {name} -n {plan.namespace}`), or delete what uses it",
    )


def _amounts(text: str) -> dict[str, str]:
    """``cpu=1,memory=2Gi`` by resource."""
    return {resource: amount for resource, equals, amount in (part.partition("=") for part in text.split(",")) if equals}


def _show(resource: str, amount: str) -> str:
    """Memory in GiB: the API server writes requests of ranks with all their digits."""
    if resource not in (_GPU_MEMORY, "memory", "requests.memory", "limits.memory"):
        return amount
    try:
        return f"{to_bytes(amount) / GIB:.1f} GiB"
    except ValueError:
        return amount

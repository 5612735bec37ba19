"""Which Macs may take a rank at all, regardless of links and memory, and why the others may not.

A Mac must be Ready, schedulable and profiled, match the selector, have only tolerated taints, and hold the complete model.

To add a rule, add its fact to ``fleet.Mac``, which ``observe.fleet`` makes from Node and NodeProfile, and its message here. A
rule about several Macs belongs to ``cohorts``, one about links to ``graph.hops``, a preference to ``score``.
"""

from collections.abc import Iterable

from thunderfleet_operator.placement.fleet import Mac, Taint
from thunderfleet_operator.placement.model import ModelFacts
from thunderfleet_operator.placement.request import Request, Toleration


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration matches a taint, by the rules of Kubernetes."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key is None:
        return toleration.exists
    return toleration.key == taint.key and (toleration.exists or toleration.value == taint.value)


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """The first taint that keeps a pod with these tolerations away."""
    allowed = tuple(tolerations)
    for taint in taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(tolerates(entry, taint) for entry in allowed):
            return taint
    return None


def wanted_model(mac: Mac, request: Request) -> tuple[ModelFacts, ...]:
    """The requested model on this Mac's disk: at most one folder by path, possibly several by repository."""
    if request.path is not None:
        return tuple([model for model in mac.models if model.path == request.path])
    return tuple(
        model
        for model in mac.models
        if model.repository == request.repository
        and (request.revision in ("", "main") or model.revision is None or model.revision == request.revision)
    )


def _model_reason(mac: Mac, request: Request) -> str | None:
    found = wanted_model(mac, request)
    if not found:
        return f"does not have {request.model} on disk; copy it into one of its model folders"
    for model in found:
        if model.complete and model.sized:
            return None
    broken = next((model for model in found if not model.complete), None)
    if broken is not None:
        return f"has an incomplete copy of the model at {broken.path}: {broken.problem or 'files are missing'}"
    return f"has not determined how much memory {found[0].path} needs: {found[0].problem or 'it has not been sized'}"


def _node_reason(mac: Mac, request: Request) -> str | None:
    if mac.name in request.avoid:
        return request.avoid[mac.name]
    if not mac.ready:
        return "is not Ready: switch it on, or check its kubelet"
    if not mac.schedulable:
        return f"is cordoned (kubectl uncordon {mac.name})"
    if mac.quarantine:
        return f"is quarantined until it reboots: {mac.quarantine}"
    missing = [f"{key}={value}" for key, value in request.selector.items() if mac.labels.get(key) != value]
    if missing:
        return f"does not have the label {min(missing)} required by spec.nodes.selector"
    taint = untolerated(mac.taints, request.tolerations) if mac.taints else None
    if taint is not None:
        value = f"={taint.value}" if taint.value else ""
        return f"has the taint {taint.key}{value}:{taint.effect}, which spec.nodes.tolerations does not tolerate"
    return None


def ineligible_reason(mac: Mac, request: Request) -> str | None:
    """Why this Mac may not take a rank, as the end of a sentence that begins with its name; None when it may."""
    reason = _node_reason(mac, request)
    if reason is not None:
        return reason
    if not mac.address:
        return "has no InternalIP address"
    if not mac.profiled:
        return "has no NodeProfile yet; check that the agent runs there"
    return _model_reason(mac, request)

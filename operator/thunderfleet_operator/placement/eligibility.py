"""Hard rule 4: which Macs may take a rank at all, whatever else is true, and why the others may not."""

from collections.abc import Iterable

from thunderfleet_operator.placement.fleet import Mac, ModelFacts, Taint
from thunderfleet_operator.placement.request import Request, Toleration
from thunderfleet_operator.placement.words import WantedTransport


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """As Kubernetes matches them."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key is None:
        return toleration.exists
    return toleration.key == taint.key and (toleration.exists or toleration.value == taint.value)


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    allowed = tuple(tolerations)
    for taint in taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(tolerates(entry, taint) for entry in allowed):
            return taint
    return None


def wanted_model(mac: Mac, request: Request) -> tuple[ModelFacts, ...]:
    """The request's model on this Mac's disk: at most one folder by path, maybe several by repository."""
    if request.path is not None:
        return tuple([model for model in mac.models if model.path == request.path])
    return tuple(
        model
        for model in mac.models
        if model.repository == request.repository
        and (request.revision in ("", "main") or model.revision is None or model.revision == request.revision)
    )


def _model_lack(mac: Mac, request: Request) -> str | None:
    found = wanted_model(mac, request)
    if not found:
        return f"does not have {request.model} on its disk: put it into a model folder there, as on the other Macs"
    for model in found:
        if model.complete and model.sized:
            return None
    broken = next((model for model in found if not model.complete), None)
    if broken is not None:
        return f"has {broken.path} incomplete: {broken.problem or 'files are missing'}"
    return f"does not know yet what {found[0].path} needs: {found[0].problem or 'it has not been sized'}"


def lack(mac: Mac, request: Request) -> str | None:
    """Why this Mac may not take a rank, as the end of a sentence that begins with its name; None when it may."""
    if mac.name in request.avoid:
        return request.avoid[mac.name]
    if not mac.ready:
        return "is not Ready"
    if not mac.schedulable:
        return f"is cordoned (kubectl uncordon {mac.name})"
    if mac.quarantine:
        return f"is quarantined until it is rebooted: {mac.quarantine}"
    missing = [f"{key}={value}" for key, value in request.selector.items() if mac.labels.get(key) != value]
    if missing:
        return f"does not have the label {min(missing)} that nodes.selector asks for"
    taint = untolerated(mac.taints, request.tolerations) if mac.taints else None
    if taint is not None:
        value = f"={taint.value}" if taint.value else ""
        return f"has the taint {taint.key}{value}:{taint.effect}, which nodes.tolerations does not tolerate"
    if not mac.address:
        return "has no InternalIP address"
    if not mac.profiled:
        return "has no NodeProfile yet: is its agent running?"
    if request.transport in (WantedTransport.JACCL, WantedTransport.JACCL_RING) and "jaccl" not in mac.backends:
        has = ", ".join(sorted(mac.backends)) or "no backend"
        return f"cannot run {request.transport}: its MLX {mac.mlx_version or '(unknown version)'} has {has} only"
    return _model_lack(mac, request)

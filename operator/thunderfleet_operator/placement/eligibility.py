"""Which Macs may take a rank at all, regardless of links and memory, and why the others may not.

A Mac must be Ready, schedulable and profiled, match the selector, have only tolerated taints, and hold the complete model.

To add a rule:

1. Add its fact to ``fleet.Mac``, which ``observe.fleet`` makes from Node and NodeProfile.
2. Add its message to ``_node_reasons``, and the fact of a Mac that follows the rule to ``mended`` below it. Near misses and
   simulated failures use that; ``test_a_mended_mac_may_take_a_rank`` fails without it.
3. If the rule takes more than a setting to follow, set its cost in ``_cost`` of ``explain.obstacles``, by which near
   misses are ordered.
4. If the fact changes often, and a change cannot affect groups on other Macs, leave it out in ``_for_all`` of
   ``observe.concerns``: otherwise each change queues every ModelDeployment.

A rule about several Macs belongs to ``cohorts``, one about links to ``graph.hops``, a preference to ``rating.score``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from thunderfleet_operator.placement.inputs.fleet import Mac, Taint
from thunderfleet_operator.placement.inputs.model import ModelFacts
from thunderfleet_operator.placement.inputs.request import Request, Toleration


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration matches a taint, by the rules of Kubernetes."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key is None:
        return toleration.exists
    return toleration.key == taint.key and (toleration.exists or toleration.value == taint.value)


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> tuple[Taint, ...]:
    """The taints that keep a pod with these tolerations away."""
    allowed = _by_key(tuple(tolerations))
    return tuple(
        taint
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
        and not any(tolerates(entry, taint) for entry in (*allowed.get(None, ()), *allowed.get(taint.key, ())))
    )


@lru_cache(maxsize=16)
def _by_key(tolerations: tuple[Toleration, ...]) -> Mapping[str | None, Sequence[Toleration]]:
    found: dict[str | None, list[Toleration]] = {}
    for entry in tolerations:
        found.setdefault(entry.key, []).append(entry)
    return found


def wanted_model(mac: Mac, request: Request) -> tuple[ModelFacts, ...]:
    """The requested model on this Mac's disk: at most one folder by path, possibly several by repository."""
    return wanted_models(mac.models, request)


def wanted_models(models: Iterable[ModelFacts], request: Request) -> tuple[ModelFacts, ...]:
    """The requested model among these."""
    if request.path is not None:
        return tuple([model for model in models if model.path == request.path])
    return tuple(
        model
        for model in models
        if model.repository == request.repository
        and (request.revision in ("", "main") or model.revision is None or model.revision == request.revision)
    )


def other_revisions(mac: Mac, request: Request) -> tuple[ModelFacts, ...]:
    """Copies of the requested repository on this Mac's disk that have another commit than the requested one."""
    if request.path is not None:
        return ()
    wanted = {model.path for model in wanted_model(mac, request)}
    return tuple(model for model in mac.models if model.repository == request.repository and model.path not in wanted)


def _model_reason(mac: Mac, request: Request) -> str | None:
    found = wanted_model(mac, request)
    if not found and (others := other_revisions(mac, request)):
        commits = " and ".join(str(model.revision) for model in others[:2])
        return f"has commit {commits} of {request.model}, not {request.revision}, which spec.model.revision requires"
    if not found and request.uri is not None:
        return f"does not have {request.model} on disk, and no model store to fetch it to (chart value agent.modelStore)"
    if not found:
        where = "there" if request.path is not None else f"to {request.model} below a folder of agent.modelFolders"
        return f"does not have {request.model} on disk; copy it {where}"
    for model in found:
        if model.usable:
            return None
    broken = next((model for model in found if not model.complete), None)
    if broken is not None:
        return f"has an incomplete copy of the model at {broken.path} (copy it again): {broken.problem or 'files are missing'}"
    unsupported = next((model for model in found if model.unsupported is not None), None)
    if unsupported is not None:
        return (
            f"cannot run the model at {unsupported.path} (install an image with a newer mlx-lm, or choose another model): "
            f"{unsupported.unsupported}"
        )
    path, problem = found[0].path, found[0].problem
    if problem:
        return f"has not determined how much memory {path} needs (its agent tries again every 5 minutes): {problem}"
    return f"computes how much memory {path} needs; if this persists for more than a few minutes, see the log of its agent"


def _node_reasons(mac: Mac, request: Request) -> Iterator[str]:
    if mac.name in request.avoid:
        yield request.avoid[mac.name]
    if not mac.ready:
        yield "is not Ready: switch it on, or check its kubelet"
    if not mac.schedulable:
        yield f"is cordoned (kubectl uncordon {mac.name})"
    if mac.quarantine:
        yield f"is quarantined until it reboots: {mac.quarantine}"
    if mac.full:
        yield f"runs {mac.max_pods} pods, as many as its kubelet allows: delete pods there, or raise its maxPods"
    missing = [f"{key}={value}" for key, value in request.selector.items() if mac.labels.get(key) != value]
    if missing:
        yield f"does not have the label {' and '.join(sorted(missing))} required by spec.nodes.selector"
    for taint in untolerated(mac.taints, request.tolerations) if mac.taints else ():
        value = f"={taint.value}" if taint.value else ""
        yield f"has the taint {taint.key}{value}:{taint.effect}, which spec.nodes.tolerations does not tolerate"


def mended(mac: Mac, request: Request) -> Mac:
    """The Mac once nothing of ``_node_reasons`` keeps it away, except what only ``request`` excludes (``avoid``)."""
    labels = {**mac.labels, **request.selector}
    return replace(mac, ready=True, schedulable=True, quarantine=None, full=False, labels=labels, taints=())


def ineligible_reasons(mac: Mac, request: Request) -> Iterator[str]:
    """Everything that keeps this Mac from taking a rank, each as the end of a sentence that begins with its name."""
    yield from _node_reasons(mac, request)
    if not mac.address:
        yield "has no InternalIP address"
    if not mac.profiled:
        yield "has no NodeProfile yet; check that the agent runs there"
        return
    model = _model_reason(mac, request)
    if model is not None:
        yield model


def ineligible_reason(mac: Mac, request: Request) -> str | None:
    """The first of ``ineligible_reasons``; None when the Mac may take a rank."""
    return next(ineligible_reasons(mac, request), None)

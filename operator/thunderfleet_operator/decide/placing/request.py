"""The planner's request for a ModelDeployment's spec."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from thunderfleet_crds.exchange.routing import LEAST_CACHED_TOKENS
from thunderfleet_crds.kinds.modeldeployment import ModelDeploymentSpec
from thunderfleet_crds.names import TAINT_MACOS

from thunderfleet_operator.placement import Lengths, MemoryRequest, Request, Toleration

MACOS_TOLERATION = Toleration(key=TAINT_MACOS, exists=True)


def spec_hash(spec: ModelDeploymentSpec) -> str:
    """The hash of everything in the spec that a plan or a pod is made from.

    Fields with their default value are left out, so that a field which a later version adds rolls out no group.
    """
    relevant = spec.model_dump(by_alias=True, exclude_defaults=True, mode="json")
    # The policy applies to new placements only, metadata and priority to new pods only; the other fields set the
    # number of groups, and who finds them.
    for name in ("replicas", "recovery", "placement", "autoscaling", "suspend", "priorityClassName", "podMetadata"):
        relevant.pop(name, None)
    _forget_former_default(relevant)
    # What Macs keep of the files counts for new placements only.
    relevant.get("model", {}).pop("copies", None)
    server = relevant.pop("server", {})
    server = {name: value for name, value in server.items() if name not in ("aliases", "apiKeys")}
    if server:
        relevant["server"] = server
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:16]


def _forget_former_default(relevant: dict[str, Any]) -> None:
    """Leaves out a cache of 65536 tokens, the default of earlier versions, which the API server stored in every object.

    So neither a new version nor unsetting the field rolls out a group.
    """
    memory = relevant.get("memory", {})
    if memory.get("cachedTokens") == LEAST_CACHED_TOKENS:
        del memory["cachedTokens"]
        if not memory:
            del relevant["memory"]


def request(
    spec: ModelDeploymentSpec,
    current: tuple[str, ...] = (),
    avoid: Mapping[str, str] | None = None,
    corrections: Mapping[str, float] | None = None,
) -> Request:
    """The planner's request for one group. ``current``: its Macs by rank. ``avoid``: Macs to leave out, with the reason.

    ``corrections``: of predicted rates, by chip.
    """
    memory = spec.memory
    return Request(
        path=spec.model.path,
        repository=spec.model.kept_as,
        uri=spec.model.uri,
        revision=spec.model.revision,
        min_nodes=spec.nodes.min,
        max_nodes=spec.nodes.max,
        selector=dict(spec.nodes.selector),
        tolerations=(
            MACOS_TOLERATION,
            *(Toleration(t.key, t.operator == "Exists", t.value or "", t.effect) for t in spec.nodes.tolerations),
        ),
        split=spec.parallelism,
        transport=spec.transport,
        memory=MemoryRequest(memory.context_tokens, memory.concurrent_requests, memory.cache_capacity, memory.headroom_percent),
        lengths=Lengths(spec.benchmark.prompt_tokens, spec.benchmark.generation_tokens),
        corrections=corrections or {},
        policy=spec.placement.policy,
        current=current,
        avoid=avoid or {},
        ring_without_relay=spec.bootstrap.ring_without_relay,
    )

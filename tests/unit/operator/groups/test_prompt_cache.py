"""The capacity of the prompt cache: from the spec to plans, and what the status says about a small one."""

import hashlib
import json
from typing import Any

import pytest
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modeldeployment import ModelDeploymentSpec
from thunderfleet_operator.decide.placing.request import request, spec_hash
from thunderfleet_operator.watch.cache import CONFIGMAPS

from tests.unit.operator.world import World

LONG = {"contextTokens": 131072}


def spec(memory: dict[str, Any]) -> ModelDeploymentSpec:
    return ModelDeploymentSpec.load({"model": {"path": "/m"}, "memory": memory})


@pytest.mark.parametrize(
    ("memory", "capacity"),
    [
        ({}, 65536),
        ({"contextTokens": 1024}, 65536),
        (LONG, 131072),
        (LONG | {"cachedTokens": None}, 131072),
        (LONG | {"cachedTokens": 4096}, 4096),
        (LONG | {"cachedTokens": 0}, 0),
        ({"cachedTokens": 200000}, 200000),
    ],
)
def test_the_cache_holds_the_longest_conversation_unless_the_spec_says_otherwise(memory: dict[str, Any], capacity: int) -> None:
    assert request(spec(memory)).memory.cached_tokens == capacity


def earlier_hash(memory: dict[str, Any]) -> str:
    """As versions computed it whose default was 65536."""
    changed = {name: value for name, value in memory.items() if value != {"cachedTokens": 65536}.get(name)}
    relevant = {"model": {"path": "/m"}, **({"memory": changed} if changed else {})}
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.parametrize("memory", [{}, LONG, {"cachedTokens": 65536}, LONG | {"cachedTokens": 65536}, {"cachedTokens": 4096}])
def test_no_group_of_an_earlier_version_is_rolled_out(memory: dict[str, Any]) -> None:
    assert spec_hash(spec(memory)) == earlier_hash(memory)


def test_other_capacities_roll_groups_out() -> None:
    assert len({spec_hash(spec(memory)) for memory in ({}, {"cachedTokens": 0}, {"cachedTokens": 4096}, LONG)}) == 4


async def test_a_small_cache_is_shown_and_a_group_keeps_what_it_was_placed_with(world: World) -> None:
    world.mac("big-1", "10.0.0.8", 4 << 40)
    world.deploy(nodes={"max": 1}, memory=LONG | {"cachedTokens": 65536})
    await world.round()
    world.run_pods()
    world.say("Ready", 1)
    await world.round()
    status, _, message = world.condition("Placed")[:3]
    assert status == "True" and "holds 65536 tokens, less than the context of 131072" in message
    # The API server has stored the default of an earlier version; the group stays as it is.
    world.edit(memory=LONG)
    await world.round()
    (group,) = world.md.status.groups
    assert (group.epoch, group.state.value) == (1, "Ready")
    assert "holds 65536 tokens" in world.condition("Placed")[2]


async def test_a_new_placement_has_room_for_the_longest_conversation(world: World) -> None:
    world.mac("big-1", "10.0.0.8", 4 << 40)
    world.deploy(nodes={"max": 1}, memory=LONG)
    await world.round()
    (item,) = world.cache[CONFIGMAPS].items.values()
    assert Plan.model_validate_json(item["data"]["plan.json"]).memory.cached_tokens == 131072
    assert "prompt cache" not in world.condition("Placed")[2]

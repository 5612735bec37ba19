"""The tables that are made from the cached objects: always those of all objects, and kept while their values stay the same."""

from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.placement import Fleet
from thunderfleet_operator.watch.cache import CONFIGMAPS, DEPLOYMENTS, PODS

from tests.unit.operator.world import World

TABLES = (
    *("pods", "epochs", "epochs_of", "pods_of", "plans", "newest_epochs", "plans_on", "running_on"),
    *("usage", "taken", "fleet", "live_nodes", "requests_of", "nodes_at"),
)


async def test_tables_follow_what_changes_and_stay_the_same_values_otherwise(world: World) -> None:
    """At 200 groups most of a round would else be tables that are made again from the same values."""
    world.deploy()
    index = world.index

    def fresh() -> bool:
        other = Index(world.cache, lambda: world.keys)
        found = {name: (getattr(index, name), getattr(other, name)) for name in TABLES}
        return all(_macs(one) == _macs(two) for one, two in found.values())

    assert fresh()
    await world.serve()
    assert fresh() and index.plans_on and index.running_on and index.taken.memory

    def held() -> dict[str, object]:
        return {name: getattr(index, name) for name in TABLES}

    before = held()
    world.change(DEPLOYMENTS, "ns/md", lambda item: item["status"].update(model="another"))
    after = held()
    assert fresh() and index.deployments["ns/md"].status.model == "another"  # type: ignore[union-attr]
    assert [name for name in TABLES if after[name] is not before[name]] == []
    world.change(DEPLOYMENTS, "ns/md", lambda item: item["spec"].update(suspend=True))
    assert fresh() and index.taken is not before["taken"], "what its plan holds is what its pods hold now"
    pods = list(world.pods())
    world.remove(PODS, f"ns/{pods[0]}")
    assert fresh() and len(index.running_on) == len(pods) - 1
    world.change(DEPLOYMENTS, "ns/md", lambda item: item["metadata"].update(uid="another"))
    assert fresh() and not index.usage.plans
    world.remove(CONFIGMAPS, next(iter(world.cache[CONFIGMAPS].items)))
    assert fresh() and not index.plans


def _macs(value: object) -> object:
    """A fleet by its contents."""
    return (value.macs, value.cables) if isinstance(value, Fleet) else value

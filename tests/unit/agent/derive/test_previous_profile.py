"""A restarted agent keeps the models and the runtime of the earlier profile until it knows them itself."""

from __future__ import annotations

from types import MappingProxyType

from thunderfleet_agent.derive.previous_profile import PreviousProfile
from thunderfleet_agent.observe.facts import Facts, Source
from thunderfleet_crds.kinds.nodeprofile import Model, NodeProfile, NodeProfileStatus, Runtime
from thunderfleet_crds.meta.apimodel import ObjectMeta
from thunderfleet_lib.host.hostcmd import Failure, FailureKind

SIZED = Model.load({"path": "/m/a", "bytes": 10, "complete": True, "revision": "r1", "architecture": "qwen2", "sizedBy": "MLX"})
RUNTIME = Runtime(mlx_version="0.32", backends=("ring",))
NEW = Runtime(mlx_version="0.33", backends=("ring",))


def unsized(**changes: object) -> Model:
    return SIZED.model_copy(update={"sized_by": None, **changes})


def previous(*models: Model) -> PreviousProfile:
    found = PreviousProfile()
    found.load(NodeProfile(metadata=ObjectMeta(name="a"), status=NodeProfileStatus(models=models, runtime=RUNTIME)))
    return found


def test_unknown_facts_are_filled() -> None:
    filled = previous(SIZED).fill(Facts())
    assert filled.models == (SIZED,) and filled.runtime == RUNTIME
    nothing = PreviousProfile()
    nothing.load(None)
    assert nothing.fill(Facts()) == Facts()


def test_only_the_first_profile_counts() -> None:
    found = previous(SIZED)
    found.load(NodeProfile(metadata=ObjectMeta(name="a"), status=NodeProfileStatus()))
    assert found.fill(Facts()).models == (SIZED,)


def test_a_known_or_failed_runtime_replaces_the_earlier_one_for_good() -> None:
    found = previous()
    assert found.fill(Facts(runtime=NEW)).runtime == NEW
    assert found.fill(Facts()).runtime is None
    found = previous()
    failed = MappingProxyType({Source.RUNTIME: Failure("thunderfleet-runner", FailureKind.ABSENT, "does not exist")})
    assert found.fill(Facts(failures=failed)).runtime is None and found.fill(Facts()).runtime is None
    found = previous()
    other = MappingProxyType({Source.SYSTEM: Failure("sw_vers", FailureKind.ABSENT, "does not exist")})
    assert found.fill(Facts(failures=other)).runtime == RUNTIME


def test_a_model_keeps_its_sizes_until_it_is_sized_again() -> None:
    found = previous(SIZED)
    assert found.fill(Facts(models=(unsized(),))).models == (SIZED,)
    again = SIZED.model_copy(update={"layers": 5})
    assert found.fill(Facts(models=(again,))).models == (again,)
    assert found.fill(Facts(models=(unsized(),))).models == (unsized(),), "the earlier sizes are forgotten"


def test_a_model_that_changed_failed_or_is_gone_does_not() -> None:
    for changes in ({"bytes": 11}, {"revision": "r2"}, {"architecture": "llama"}, {"problem": "not sized"}):
        model = unsized(**changes)
        assert previous(SIZED).fill(Facts(models=(model,))).models == (model,), changes
    assert previous(SIZED).fill(Facts(models=())).models == ()
    other = unsized(path="/m/b")
    assert previous(SIZED).fill(Facts(models=(other,))).models == (other,)

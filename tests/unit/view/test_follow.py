"""What a deployment that is not Ready waits for, and when waiting is in vain."""

from typing import Any

import pytest
from thunderfleet_localcluster.demo.model import the_model
from thunderfleet_view.follow import condition, is_asleep, is_ready, obstacle, waiting_for, without_scheduler_noise


def deployment(conditions: dict[str, tuple[str, str]], generation: int = 2) -> dict[str, Any]:
    """A ModelDeployment with conditions by type: (status, message), observed at generation 2."""
    found = [
        {"type": name, "status": status, "message": message, "reason": "Why", "observedGeneration": 2}
        for name, (status, message) in conditions.items()
    ]
    return {
        "metadata": {"generation": generation},
        "status": {"conditions": found, "groups": [{"parallelism": "Tensor"}]},
    }


READY = {name: ("True", "") for name in ("ModelResolved", "Placed", "Bootstrapped", "Ready")}


@pytest.mark.parametrize("missing", ["ModelResolved", "Placed", "Bootstrapped", "Ready"])
def test_the_first_condition_that_is_not_true_is_shown(missing: str) -> None:
    found = deployment({**READY, "Ready": ("False", "later"), missing: ("False", "because")})
    assert waiting_for(found) == f"{missing}: because"
    assert waiting_for(deployment({**READY, "Ready": ("False", "later"), missing: ("False", "")})) == f"{missing}: Why"


def test_a_condition_that_is_not_reported_yet() -> None:
    assert waiting_for({"metadata": {"generation": 1}}) == "ModelResolved: not reported yet"
    assert condition({"metadata": {"generation": 1}}, "Ready") == {}
    assert waiting_for(deployment(READY)) == "waiting for the operator to report on the last change"


NOISE = (
    "0/5 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, 4 node(s) didn't satisfy "
    "plugin(s) [NodeAffinity]. no new claims to deallocate, preemption: 0/5 nodes are available"
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            f"group 0: Starting: waiting for the scheduler to bind pod tiny-0-e2-0 to studio-1: {NOISE}",
            "group 0: Starting: pod tiny-0-e2-0 waits until studio-1 has room for it, for example when the previous pod has "
            "ended",
        ),
        (
            f"pod tiny-0-e2-0: {NOISE}",
            "pod tiny-0-e2-0 waits until its Mac has room for it, for example when the previous pod has ended",
        ),
        ("group 0: Loading: rank 0 on studio-1", "group 0: Loading: rank 0 on studio-1"),
    ],
)
def test_the_schedulers_list_of_nodes_is_shortened_to_one_sentence(message: str, expected: str) -> None:
    assert without_scheduler_noise(message) == expected
    assert (
        waiting_for(deployment({"Ready": ("False", ""), "ModelResolved": ("False", message)})) == f"ModelResolved: {expected}"
    )


def test_ready_is_for_the_newest_spec_and_the_wanted_parallelism() -> None:
    assert is_ready(deployment(READY)) and is_ready(deployment(READY), "Tensor")
    assert not is_ready(deployment(READY), "Pipeline")
    assert not is_ready(deployment(READY, generation=3))
    assert not is_ready(deployment({**READY, "Ready": ("Unknown", "")}))
    without_groups = deployment(READY)
    without_groups["status"]["groups"] = []
    assert is_ready(without_groups) and not is_ready(without_groups, "Tensor")


def test_asleep_is_for_the_newest_spec() -> None:
    found = deployment({})
    found["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "Asleep", "observedGeneration": 2}]
    assert is_asleep(found) and not is_ready(found)
    found["metadata"]["generation"] = 3
    assert not is_asleep(found)


def test_the_model_has_a_question_for_every_step() -> None:
    model = the_model()
    assert len(set(model.questions)) == 3 and model.tokens > 0
    assert model.repository.count("/") == 1


def test_a_group_that_gave_up_is_an_obstacle() -> None:
    # The reason of Degraded is that of the last failure, whatever becomes of the group.
    found = deployment({"ModelResolved": ("True", ""), "Placed": ("True", ""), "Degraded": ("True", "out of memory")})
    found["status"]["groups"] = [{"state": "BackingOff"}]
    assert obstacle(found) is None
    found["status"]["groups"] = [{"state": "Ready"}, {"state": "GaveUp"}]
    assert obstacle(found) == "GaveUp: out of memory"


def test_an_obstacle_is_of_the_newest_spec() -> None:
    conditions = {"ModelResolved": ("True", ""), "Placed": ("False", "no room")}
    assert obstacle(deployment(conditions)) == "Why: no room"
    assert obstacle(deployment(conditions, generation=3)) is None

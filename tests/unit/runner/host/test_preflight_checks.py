"""The checks of preflight and their faults."""

from collections.abc import Callable
from typing import Any

import pytest
from thunderfleet_crds.vocabulary import FaultClass
from thunderfleet_runner.host import broken_models, memory, preflight
from thunderfleet_runner.host.preflight import PreflightFailed


@pytest.fixture
def group(make_group: Callable[..., Any]) -> Any:
    return make_group(2)


def refused(plan: Any, entry: Any) -> Any:
    with pytest.raises(PreflightFailed) as caught:
        preflight.check(plan, entry)
    return caught.value.fault


def test_all_is_well(group: Any) -> None:
    assert preflight.check(group.plan, group.plan.ranks[0]) == preflight.digest(group.plan) != ""


def test_an_address_that_has_gone_needs_another_placement(group: Any) -> None:
    entry = group.plan.ranks[1].model_copy(update={"ring_address": "192.0.2.7"})
    fault = refused(group.plan, entry)
    assert (fault.fault, fault.reason) == (FaultClass.REPLAN, "AddressLost")
    assert "192.0.2.7" in fault.message


def test_a_model_that_is_not_there_is_for_a_person(group: Any) -> None:
    (group.model / "config.json").unlink()
    fault = refused(group.plan, group.plan.ranks[0])
    assert (fault.fault, fault.reason) == (FaultClass.CONFIGURE, "ModelNotFound")
    assert str(group.model) in fault.message and "studio-0" in fault.message
    assert preflight.digest(group.plan) == ""


def test_a_file_that_was_cut_short_is_named(group: Any) -> None:
    path = group.model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    fault = refused(group.plan, group.plan.ranks[0])
    assert (fault.fault, fault.reason) == (FaultClass.CONFIGURE, "ModelIncomplete")
    assert "model.safetensors" in fault.message and fault.message.endswith("; download it again")


def test_memory_that_others_use_is_waited_for(group: Any) -> None:
    entry = group.plan.ranks[0].model_copy(update={"memory_bytes": 8 << 30})
    with pytest.raises(PreflightFailed) as caught:
        preflight.check_memory(entry, 6 << 30)
    assert caught.value.fault.fault is FaultClass.RETRY
    assert "6.0 GiB free, the plan reserves 8.0 GiB" in caught.value.fault.message
    preflight.check_memory(entry, 8 << 30)
    preflight.check_memory(entry, None)


def test_the_digest_follows_tokenizer_and_tensors_but_not_their_values(group: Any) -> None:
    first = preflight.digest(group.plan)
    path = group.model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert preflight.digest(group.plan) == first
    (group.model / "tokenizer_config.json").write_text("{}")
    assert preflight.digest(group.plan) != first


def test_free_memory_as_the_systems_say_it() -> None:
    assert memory.available_of_meminfo("MemTotal: 9 kB\nMemAvailable:   1024 kB\n") == 1 << 20
    text = (
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
        "Pages free:                               10.\nPages active:                            500.\n"
        "Pages inactive:                            5.\nPages speculative:                         1.\n"
        "Pages purgeable:                           0.\n"
    )
    assert memory.available_of_vm_stat(text) == 16 * 16384
    assert memory.available_of_vm_stat("nothing") is None


@pytest.mark.parametrize(
    ("config", "version", "broken"),
    [
        ({"model_type": "glm_moe_dsa", "indexer_types": ["full", "shared"]}, "0.32.2", True),
        ({"model_type": "glm_moe_dsa", "indexer_types": ["full", "shared"]}, "0.31.9.dev1", True),
        ({"model_type": "glm_moe_dsa", "indexer_types": ["full", "shared"]}, "0.33.0", False),
        ({"model_type": "glm_moe_dsa", "indexer_types": ["full", "shared"]}, "", False),
        ({"model_type": "glm_moe_dsa", "indexer_types": ["full", "full"]}, "0.32.2", False),
        ({"model_type": "glm_moe_dsa", "indexer_types": 7}, "0.32.2", False),
        ({"model_type": "glm_moe_dsa"}, "0.32.2", False),
        ({"model_type": ["glm_moe_dsa"], "indexer_types": ["shared"]}, "0.32.2", False),
    ],
)
def test_models_that_are_known_to_fail(config: dict[str, Any], version: str, broken: bool) -> None:
    assert (broken_models.why_broken(config, version) is not None) is broken


@pytest.mark.parametrize("text", ["[]", "{", '{"model_type": NaN}'])
def test_a_configuration_that_cannot_be_read_is_left_to_the_loader(group: Any, text: str) -> None:
    (group.model / "config.json").write_text(text)
    assert preflight.check(group.plan, group.plan.ranks[0]) != ""


def test_a_model_that_mlx_lm_cannot_run_is_named_before_it_is_loaded(group: Any) -> None:
    (group.model / "config.json").write_text('{"model_type": "glm_moe_dsa", "indexer_types": ["shared"]}')
    fault = refused(group.plan, group.plan.ranks[0])
    assert (fault.fault, fault.reason) == (FaultClass.CONFIGURE, "ModelUnsupported")
    assert "share the indexers of others" in fault.message and "studio-0" in fault.message

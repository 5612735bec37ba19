"""What the operator and the routers exchange."""

import base64

import pytest
from pydantic import ValidationError
from thunderfleet_crds.exchange import routing
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.exchange.routing import AcceptedKey, Demand, DemandReport, GroupKey, KeyLimits, Routes
from thunderfleet_crds.vocabulary import KeyPriority

FIRST, SECOND = b"1" * 32, b"2" * 32


def _fields(*keys: bytes) -> dict[str, object]:
    return {f"key-{routing.key_id(key)}": base64.b64encode(key).decode() for key in keys}


def test_a_key_has_another_digest_with_another_routing_key() -> None:
    assert routing.key_digest(FIRST, "sk-1") != routing.key_digest(SECOND, "sk-1")
    assert routing.key_digest(FIRST, "sk-1") != routing.key_digest(FIRST, "sk-2")
    assert routing.key_digest(FIRST, " sk-1\n") == routing.key_digest(FIRST, "sk-1")


def test_keys_of_any_bytes_have_digests() -> None:
    assert len(routing.key_digest(FIRST, "\udcff\x00é")) == 64


def test_each_placement_has_its_own_credential() -> None:
    placements = [
        ("a", "b", "u", 0, 1),
        ("a", "b", "u", 0, 2),
        ("a", "b", "u", 1, 1),
        ("a", "b", "v", 0, 1),
        ("a,b", "", "u", 0, 1),
    ]
    credentials = {routing.group_credential(FIRST, *placement) for placement in placements}
    assert len(credentials) == len(placements)
    assert not credentials & {routing.group_credential(SECOND, *placement) for placement in placements}


def test_a_digest_of_a_key_is_no_credential() -> None:
    assert routing.key_digest(FIRST, '["a", "b", "u", 0, 1]') not in routing.group_credential(FIRST, "a", "b", "u", 0, 1)


def test_routing_keys_are_read_from_a_secret() -> None:
    found = routing.routing_keys({**_fields(FIRST, SECOND), "tls.crt": "eA==", "key-0000000000000000": "eA=="})
    assert found == {routing.key_id(FIRST): FIRST, routing.key_id(SECOND): SECOND}


@pytest.mark.parametrize(
    "value",
    ["", "not base64!", base64.b64encode(b"short").decode(), base64.b64encode(SECOND).decode(), 7, None],
    ids=["empty", "text", "short", "another-key", "number", "null"],
)
def test_fields_without_a_valid_key_are_left_out(value: object) -> None:
    assert routing.routing_keys({f"key-{routing.key_id(FIRST)}": value}) == {}


def test_the_largest_document_is_within_its_bound() -> None:
    limits = KeyLimits(requests_in_flight=100_000, tokens_per_minute=2**31 - 1, priority=KeyPriority.NORMAL)
    keys = tuple(AcceptedKey(name="n" * 253, digest="0" * 64, limits=limits) for _ in range(routing.MAX_KEYS))
    groups = tuple(GroupKey(index=index, epoch=2**31, key_id="0" * 16) for index in range(64))
    routes = Routes(namespace="n" * 253, deployment="d" * 253, uid="u" * 64, key_id="0" * 16, keys=keys, groups=groups)
    text = routes.model_dump_json(by_alias=True)
    assert len(text) < routing.ROUTES_BYTES
    assert Routes.model_validate_json(text) == routes


def test_the_largest_report_is_within_its_bound() -> None:
    one = Demand(
        namespace="n" * 253, deployment="d" * 40, uid="u" * 36, in_flight=2**31 - 1, waiting=2**31 - 1, idle_seconds=2**31 - 1
    )
    report = DemandReport(router="r" * 253, demands=(one,) * routing.MAX_DEMANDS)
    assert len(report.model_dump_json(by_alias=True)) < routing.DEMAND_BYTES


def test_digests_and_ids_have_one_form() -> None:
    with pytest.raises(ValidationError):
        AcceptedKey(name="a", digest="0" * 63)
    with pytest.raises(ValidationError):
        GroupKey(index=0, epoch=1, key_id="../" * 5 + "x")


def test_names_of_config_maps_are_names_of_objects() -> None:
    assert routing.routes_name("a", "b") != routing.routes_name("a/b", "")
    assert len(routing.routes_name("n" * 253, "d" * 253)) <= 63


def test_a_plan_of_an_earlier_operator_has_no_credential_for_routers() -> None:
    assert Plan.model_fields["router"].default is None

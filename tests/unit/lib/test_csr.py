"""Serving certificates of kubelets: which Node serves at which address."""

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from thunderfleet_lib.csr.parse import REQUEST_BYTES, parse
from thunderfleet_lib.csr.rules import (
    ADDRESSES,
    CONTROL_PLANE_LABEL,
    WAIT_SECONDS,
    Surroundings,
    Verdict,
    approval_patch,
    decide_serving,
    is_control_plane,
    plain_address,
    published_addresses,
)

from tests.support.csr import SERVING, csr

Json = dict[str, Any]
OWN, OTHER, API = "192.168.64.11", "192.168.64.12", "192.168.64.1"
AROUND = Surroundings(frozenset({OWN, "fd00::1"}), {OTHER: "studio-2"}, frozenset({API}))


def decide(item: Json, around: Surroundings = AROUND, age: float = 0.0) -> Verdict:
    """As approvers do it."""
    try:
        request = parse(item["spec"])
    except ValueError as error:
        return Verdict("Deny", str(error))
    return decide_serving(request, around, age)


@pytest.mark.parametrize("age", [0.0, WAIT_SECONDS, 1e9])
def test_an_honest_request_is_approved_at_any_age(age: float) -> None:
    assert decide(csr(), age=age) == Verdict("Approve", f"Node studio-1 publishes {OWN}")
    assert decide(csr(addresses=(OWN, "fd00::1")), age=age).action == "Approve"
    assert decide(csr(usages=(*SERVING, "key encipherment")), age=age).action == "Approve"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"user": "system:bootstrap:abcdef"}, "not node studio-1"),
        ({"user": "kubernetes-admin"}, "not node studio-1"),
        ({"user": "system:node:"}, "not node studio-1"),
        ({"groups": ("system:authenticated",)}, "not in the group system:nodes"),
        ({"name": "system:node:studio-2"}, "common name"),
        ({"user": "system:node:studio-2"}, "common name"),
        ({"name": "system:node:"}, "common name"),
        ({"name": "system:node:studio-1?x"}, "common name"),
        ({"name": "system:node:../pods/x"}, "common name"),
        ({"organizations": ("system:masters",)}, "organization"),
        ({"organizations": ("system:nodes", "system:masters")}, "organization"),
        ({"usages": (*SERVING, "client auth")}, "usages"),
        ({"usages": ("server auth",)}, "usages"),
        ({"addresses": ()}, "has no address"),
        ({"names": ("studio-1",)}, "DNS names are not approved, only addresses; remove studio-1"),
        ({"names": ("kubernetes.default.svc",)}, "DNS names are not approved"),
        ({"other": x509.UniformResourceIdentifier("https://studio-1")}, "DNS names and addresses only"),
        ({"other": x509.RFC822Name("a@b.c")}, "DNS names and addresses only"),
        ({"addresses": (API,)}, f"{API} is an address of the API server"),
        ({"addresses": (OWN, f"::ffff:{API}")}, f"{API} is an address of the API server"),
        ({"addresses": ("127.0.0.1",)}, "127.0.0.1 is not an address of one machine"),
        ({"addresses": ("0.0.0.0",)}, "0.0.0.0 is not an address of one machine"),
        ({"addresses": ("224.0.0.251",)}, "224.0.0.251 is not an address of one machine"),
        ({"request": base64.b64encode(b"nonsense").decode()}, "PEM"),
        ({"request": "A" * (REQUEST_BYTES + 1)}, "larger than 16384 bytes"),
    ],
)
def test_what_can_never_be_right_is_denied_at_once(change: Json, text: str) -> None:
    """Even if the Node publishes it: a kubelet writes the addresses of its Node itself."""
    everything = frozenset({OWN, API, "127.0.0.1", "0.0.0.0", "224.0.0.251", "studio-1", "kubernetes.default.svc"})
    verdict = decide(csr(**change), Surroundings(everything, {}, frozenset({API})))
    assert verdict.action == "Deny"
    assert text in verdict.reason


@pytest.mark.parametrize(
    ("around", "text"),
    [
        (Surroundings(None), "Node studio-1 does not exist"),
        (Surroundings(frozenset()), f"Node studio-1 does not publish {OWN}"),
        (Surroundings(frozenset({OTHER})), f"Node studio-1 does not publish {OWN}"),
        (Surroundings(frozenset({OWN}), {OWN: "studio-2"}), f"Node studio-2 publishes {OWN} too"),
    ],
)
def test_what_may_become_right_waits_for_a_while(around: Surroundings, text: str) -> None:
    for age, action in ((0.0, "Wait"), (WAIT_SECONDS - 1, "Wait"), (WAIT_SECONDS, "Deny")):
        verdict = decide(csr(), around, age)
        assert verdict.action == action
        assert text in verdict.reason
        assert ("(waited 60 s)" in verdict.reason) == (action == "Deny")


def test_the_address_of_another_machine_is_denied_with_its_name() -> None:
    """A Node that publishes another one's address gets no certificate for it, and the message says whose it is."""
    stolen = Surroundings(frozenset({OWN, OTHER}), {OTHER: "studio-2"})
    verdict = decide(csr(addresses=(OWN, OTHER)), stolen, WAIT_SECONDS)
    assert verdict.action == "Deny"
    assert f"Node studio-2 publishes {OTHER} too" in verdict.reason
    assert "kubectl delete node studio-2" in verdict.reason


def test_a_control_plane_node_may_have_the_address_of_its_api_server() -> None:
    assert is_control_plane({"metadata": {"labels": {CONTROL_PLANE_LABEL: ""}}})
    assert not is_control_plane({"metadata": {}})
    assert decide(csr(addresses=(API,)), Surroundings(frozenset({API}))).action == "Approve"


def test_addresses_are_compared_and_not_their_spelling() -> None:
    forms = {plain_address(text) for text in ("10.0.0.1", "::ffff:10.0.0.1", "::FFFF:a00:1")}
    assert forms == {"10.0.0.1"}
    assert plain_address("FD00:0::1") == plain_address("fd00::1%en0") == "fd00::1"
    assert plain_address("studio-1.local") == "studio-1.local"
    node = {"status": {"addresses": [{"type": "InternalIP", "address": "FD00:0::1"}, {"type": "Hostname", "address": "a"}]}}
    assert published_addresses(node) == {"fd00::1", "a"}
    assert published_addresses({"metadata": {}}) == frozenset()
    many = {"status": {"addresses": [{"address": f"10.0.{number // 256}.{number % 256}"} for number in range(10_000)]}}
    assert len(published_addresses(many)) == ADDRESSES
    assert decide(csr(addresses=("fd00::1",))).action == "Approve"
    twice = decide(csr(addresses=(OWN, f"::ffff:{OWN}")))
    assert (twice.action, "without duplicates" in twice.reason) == ("Deny", True)


def test_names_of_a_kind_that_the_library_does_not_know_are_denied() -> None:
    """One hostile request must not end the approver, which everybody needs to join."""
    # A SubjectAlternativeName with one x400Address, an [3] of which the library has no class.
    unknown = x509.UnrecognizedExtension(x509.oid.ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes.fromhex("3004a3023000"))
    verdict = decide(csr(extension=unknown))
    assert verdict.action == "Deny"
    assert "invalid certificate request" in verdict.reason


@pytest.mark.parametrize(("addresses", "kind"), [((OWN,), "Approved"), ((API,), "Denied")])
def test_a_verdict_becomes_the_condition_of_the_request(addresses: tuple[str, ...], kind: str) -> None:
    verdict = decide(csr(addresses=addresses))
    patch = approval_patch(verdict, "7", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert patch["metadata"]["resourceVersion"] == "7"
    (condition,) = patch["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["message"]) == (kind, "True", verdict.reason)
    assert condition["lastUpdateTime"] == "2026-01-02T03:04:05Z"

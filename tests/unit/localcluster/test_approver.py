"""Serving certificates: approved only for the one Node that asks, in its own name, for its own published addresses."""

import base64
from ipaddress import ip_address
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from thunderfleet_localcluster.controlplane.approver import decide, pending

Json = dict[str, Any]
USAGES = ["digital signature", "server auth"]
NODE: Json = {
    "metadata": {"name": "studio-1"},
    "status": {
        "addresses": [{"type": "InternalIP", "address": "192.168.64.11"}, {"type": "Hostname", "address": "studio-1.local"}]
    },
}


def _request(
    *,
    user: str = "system:node:studio-1",
    groups: tuple[str, ...] = ("system:nodes", "system:authenticated"),
    name: str = "system:node:studio-1",
    organizations: tuple[str, ...] = ("system:nodes",),
    addresses: tuple[str, ...] = ("192.168.64.11",),
    names: tuple[str, ...] = (),
    other: x509.GeneralName | None = None,
    usages: list[str] | None = None,
    signer: str = "kubernetes.io/kubelet-serving",
) -> Json:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, value) for value in organizations]
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([*subject, x509.NameAttribute(NameOID.COMMON_NAME, name)])
    )
    alternatives: list[x509.GeneralName] = [x509.IPAddress(ip_address(value)) for value in addresses]
    alternatives += [x509.DNSName(value) for value in names]
    if other is not None:
        alternatives.append(other)
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return {
        "metadata": {"name": "csr-1"},
        "spec": {
            "username": user,
            "groups": list(groups),
            "signerName": signer,
            "usages": USAGES if usages is None else usages,
            "request": base64.b64encode(pem).decode(),
        },
    }


def test_an_honest_request_is_approved() -> None:
    assert decide(_request(), NODE).action == "Approve"
    assert decide(_request(names=("studio-1.local",)), NODE).action == "Approve"
    assert decide(_request(usages=[*USAGES, "key encipherment"]), NODE).action == "Approve"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"user": "system:bootstrap:abcdef"}, "not a node"),
        ({"user": "kubernetes-admin"}, "not a node"),
        ({"user": "system:node:"}, "not a node"),
        ({"groups": ("system:authenticated",)}, "not in the group system:nodes"),
        ({"name": "system:node:studio-2"}, "common name"),
        ({"user": "system:node:studio-2"}, "common name"),
        ({"organizations": ("system:masters",)}, "organization"),
        ({"organizations": ("system:nodes", "system:masters")}, "organization"),
        ({"usages": [*USAGES, "client auth"]}, "usages"),
        ({"usages": ["server auth"]}, "usages"),
        ({"addresses": ()}, "has no address"),
        ({"other": x509.UniformResourceIdentifier("https://studio-1")}, "DNS names and addresses only"),
        ({"other": x509.RFC822Name("a@b.c")}, "DNS names and addresses only"),
    ],
)
def test_what_can_never_be_right_is_denied(change: Json, text: str) -> None:
    verdict = decide(_request(**change), NODE)
    assert verdict.action == "Deny"
    assert text in verdict.reason


@pytest.mark.parametrize("change", [{"addresses": ("192.168.64.12",)}, {"names": ("api.example.com",)}])
def test_a_name_that_the_node_does_not_publish_waits(change: Json) -> None:
    verdict = decide(_request(**change), NODE)
    assert verdict.action == "Wait"
    assert "does not publish" in verdict.reason


def test_a_request_waits_for_its_node() -> None:
    assert decide(_request(), None).action == "Wait"
    assert decide(_request(), {"metadata": {"name": "studio-1"}}).action == "Wait"


def test_garbage_is_denied() -> None:
    request = _request()
    request["spec"]["request"] = base64.b64encode(b"nonsense").decode()
    assert decide(request, NODE).action == "Deny"


def test_only_undecided_requests_of_the_signer_are_looked_at() -> None:
    other = _request(signer="kubernetes.io/kube-apiserver-client-kubelet")
    decided = {**_request(), "status": {"conditions": [{"type": "Approved"}]}}
    mine = _request()
    assert pending([other, decided, mine]) == [mine]

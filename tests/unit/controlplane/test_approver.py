"""Certificates of kubelets: who joins as which Node, and which Node serves at which address."""

import base64
from ipaddress import ip_address
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from thunderfleet_controlplane import approval
from thunderfleet_controlplane.approval import Verdict, parse, pending
from thunderfleet_controlplane.tokens import CLIENT_SIGNER, NODE_LIMIT, bootstrap_token, bound_names, node_group

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


def decide(item: Json, node: Json | None) -> Verdict:
    """As the approver does it."""
    try:
        request = parse(item)
    except ValueError as error:
        return Verdict("Deny", str(error))
    return approval.decide(request, node)


def test_an_honest_request_is_approved() -> None:
    assert decide(_request(), NODE).action == "Approve"
    assert decide(_request(names=("studio-1.local",)), NODE).action == "Approve"
    assert decide(_request(usages=[*USAGES, "key encipherment"]), NODE).action == "Approve"


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


def test_names_of_a_kind_that_the_library_does_not_know_are_denied() -> None:
    """One hostile request must not end the approver, which everybody needs to join."""
    request = _request()
    key = ec.generate_private_key(ec.SECP256R1())
    # A SubjectAlternativeName with one x400Address, an [3] of which the library has no class.
    alternatives = x509.UnrecognizedExtension(x509.oid.ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes.fromhex("3004a3023000"))
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, "system:node:a"),
        ]
    )
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject).add_extension(alternatives, critical=False)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    request["spec"]["request"] = base64.b64encode(pem).decode()
    verdict = decide(request, NODE)
    assert verdict.action == "Deny"
    assert "invalid certificate request" in verdict.reason


def test_only_undecided_requests_of_the_signers_are_looked_at() -> None:
    other = _request(signer="kubernetes.io/kube-apiserver-client")
    renewal = _request(signer=CLIENT_SIGNER)
    decided = {**_request(), "status": {"conditions": [{"type": "Approved"}]}}
    mine, joining = _request(), _joining()
    assert pending([other, renewal, decided, mine, joining]) == [mine, joining]


def _joining(node: str = "studio-1", *bound_to: str, **change: Any) -> Json:
    """What a bootstrap token, perhaps bound to Nodes, sends to become ``node``."""
    given: Json = {
        "user": "system:bootstrap:abcdef",
        "groups": ("system:bootstrappers", *map(node_group, bound_to), "system:authenticated"),
        "name": f"system:node:{node}",
        "addresses": (),
        "usages": ["digital signature", "client auth"],
        "signer": CLIENT_SIGNER,
    }
    return _request(**given | change)


def test_an_unbound_token_becomes_a_new_node_only() -> None:
    assert decide(_joining(), None).action == "Approve"
    verdict = decide(_joining(), NODE)
    assert verdict.action == "Deny"
    for text in ("Node studio-1 exists", "thunderfleet token --node studio-1", "kubectl delete node studio-1"):
        assert text in verdict.reason


@pytest.mark.parametrize("node", [None, NODE])
def test_a_bound_token_becomes_its_node_only(node: Json | None) -> None:
    assert decide(_joining("studio-1", "studio-1"), node).action == "Approve"
    verdict = decide(_joining("studio-1", "studio-2"), node)
    assert verdict.action == "Deny"
    assert "the token is for Node studio-2, not for studio-1" in verdict.reason


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"user": "mallory"}, "not a bootstrap token"),
        ({"organizations": ("system:nodes", "system:masters")}, "organization"),
        ({"usages": ["digital signature", "client auth", "server auth"]}, "usages"),
        ({"usages": ["digital signature", "server auth"]}, "usages"),
        ({"addresses": ("192.168.64.11",)}, "no DNS names and addresses"),
        ({"names": ("kubernetes.default.svc",)}, "no DNS names and addresses"),
        ({"other": x509.UniformResourceIdentifier("https://studio-1")}, "DNS names and addresses only"),
        ({"name": "kubernetes-admin"}, "common name"),
        ({"name": "system:node:Studio-1"}, "common name"),
    ],
)
def test_what_no_kubelet_joins_with_is_denied(change: Json, text: str) -> None:
    verdict = decide(_joining(**change), None)
    assert verdict.action == "Deny"
    assert text in verdict.reason


def test_a_name_with_dots_is_bound_without_doubt() -> None:
    assert bound_names([node_group("studio-1.lan"), "system:bootstrappers", "system:bootstrappers:x"]) == {"studio-1.lan"}
    assert node_group("a.b") != node_group("a-b")
    assert decide(_joining("studio-1-lan", "studio-1.lan"), None).action == "Deny"
    assert bootstrap_token("abcdef", "x", "", "")["stringData"].get("auth-extra-groups") is None
    for name in ("", "A", "a:b", "-a", "a..b", "a" * (NODE_LIMIT + 1)):
        with pytest.raises(ValueError, match="node name"):
            node_group(name)
    assert bound_names([node_group("a" * NODE_LIMIT)]) == {"a" * NODE_LIMIT}

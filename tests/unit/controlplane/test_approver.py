"""Certificates of kubelets: who joins as which Node, and who decides serving certificates."""

from typing import Any, cast

import pytest
from cryptography import x509
from thunderfleet_controlplane.approval import decide_client, pending
from thunderfleet_controlplane.approver import Approver
from thunderfleet_controlplane.tokens import NODE_LIMIT, bootstrap_token, bound_names, node_group
from thunderfleet_lib.csr.names import CLIENT_SIGNER
from thunderfleet_lib.csr.parse import parse
from thunderfleet_lib.csr.rules import Verdict
from thunderfleet_lib.kube import Kube

from tests.support.csr import csr

Json = dict[str, Any]


def decide(item: Json, exists: bool) -> Verdict:
    """As the approver does it."""
    try:
        request = parse(item["spec"])
    except ValueError as error:
        return Verdict("Deny", str(error))
    return decide_client(request, exists)


def test_only_undecided_requests_of_the_signers_are_looked_at() -> None:
    other = csr(signer="kubernetes.io/kube-apiserver-client")
    renewal = csr(signer=CLIENT_SIGNER)
    decided = {**csr(), "status": {"conditions": [{"type": "Approved"}]}}
    mine, joining = csr(), _joining()
    assert pending([other, renewal, decided, mine, joining]) == [mine, joining]


def _joining(node: str = "studio-1", *bound_to: str, **change: Any) -> Json:
    """What a bootstrap token, perhaps bound to Nodes, sends to become ``node``."""
    given: Json = {
        "user": "system:bootstrap:abcdef",
        "groups": ("system:bootstrappers", *map(node_group, bound_to), "system:authenticated"),
        "name": f"system:node:{node}",
        "addresses": (),
        "usages": ("digital signature", "client auth"),
        "signer": CLIENT_SIGNER,
    }
    return csr(**given | change)


def test_an_unbound_token_becomes_a_new_node_only() -> None:
    assert decide(_joining(), False).action == "Approve"
    verdict = decide(_joining(), True)
    assert verdict.action == "Deny"
    for text in ("Node studio-1 exists", "thunderfleet local token --node studio-1", "kubectl delete node studio-1"):
        assert text in verdict.reason


@pytest.mark.parametrize("exists", [False, True])
def test_a_bound_token_becomes_its_node_only(exists: bool) -> None:
    assert decide(_joining("studio-1", "studio-1"), exists).action == "Approve"
    verdict = decide(_joining("studio-1", "studio-2"), exists)
    assert verdict.action == "Deny"
    assert "the token is for Node studio-2, not for studio-1" in verdict.reason


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"user": "mallory"}, "not a bootstrap token"),
        ({"organizations": ("system:nodes", "system:masters")}, "organization"),
        ({"usages": ("digital signature", "client auth", "server auth")}, "usages"),
        ({"usages": ("digital signature", "server auth")}, "usages"),
        ({"addresses": ("192.168.64.11",)}, "must not have DNS names or addresses"),
        ({"names": ("kubernetes.default.svc",)}, "must not have DNS names or addresses"),
        ({"other": x509.UniformResourceIdentifier("https://studio-1")}, "DNS names and addresses only"),
        ({"name": "kubernetes-admin"}, "common name"),
        ({"name": "system:node:Studio-1"}, "common name"),
    ],
)
def test_what_no_kubelet_joins_with_is_denied(change: Json, text: str) -> None:
    verdict = decide(_joining(**change), False)
    assert verdict.action == "Deny"
    assert text in verdict.reason


def test_a_name_with_dots_is_bound_without_doubt() -> None:
    assert bound_names([node_group("studio-1.lan"), "system:bootstrappers", "system:bootstrappers:x"]) == {"studio-1.lan"}
    assert node_group("a.b") != node_group("a-b")
    assert decide(_joining("studio-1-lan", "studio-1.lan"), False).action == "Deny"
    assert bootstrap_token("abcdef", "x", "", "")["stringData"].get("auth-extra-groups") is None
    for name in ("", "A", "a:b", "-a", "a..b", "a" * (NODE_LIMIT + 1)):
        with pytest.raises(ValueError, match="node name"):
            node_group(name)
    assert bound_names([node_group("a" * NODE_LIMIT)]) == {"a" * NODE_LIMIT}


class Server:
    """An API server with two Nodes; ``role``: the operator's ClusterRole."""

    def __init__(self, role: Json | None) -> None:
        self.role = role
        self.patches: dict[str, Json] = {}

    async def get_or_none(self, path: str) -> Json | None:
        if path.endswith("/endpointslices/kubernetes"):
            return {"endpoints": [{"addresses": ["192.168.64.1"]}, {"addresses": ["192.168.64.2"]}]}
        return self.role if "/clusterroles/" in path else None

    async def list(self, path: str) -> tuple[list[Json], str]:
        addresses = {"studio-1": "192.168.64.11", "studio-2": "192.168.64.12"}
        nodes = [
            {"metadata": {"name": name}, "status": {"addresses": [{"address": address}]}} for name, address in addresses.items()
        ]
        return nodes, "1"

    async def patch(self, path: str, body: Json) -> Json:
        self.patches[path.rsplit("/", 2)[1]] = body["status"]["conditions"][0]
        return body


async def _decided(role: Json | None, *requests: Json) -> tuple[bool, dict[str, Json]]:
    server = Server(role)
    one = Approver(cast(Kube, server), frozenset({"192.168.64.1"}))
    for request in requests:
        request["metadata"]["resourceVersion"] = "1"
    return await one._decide_all(list(requests)), server.patches


SIGNERS = {"rules": [{"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": ["approve"]}]}


@pytest.mark.parametrize("role", [None, {"rules": [{"resources": ["pods"]}]}])
async def test_without_the_operator_serving_certificates_are_decided_here(role: Json | None) -> None:
    """``kubectl logs`` works on a cluster without the chart, and on one whose chart is older than the rules."""
    foreign = csr(addresses=("192.168.64.12",), object_name="csr-2")
    api = csr(addresses=("192.168.64.1",), object_name="csr-3")
    beside = csr(addresses=("192.168.64.2",), object_name="csr-4")
    waiting, decided = await _decided(role, csr(), foreign, api, beside)
    assert {name: one["type"] for name, one in decided.items() if one["type"] != "Denied"} == {"csr-1": "Approved"}
    assert "does not publish 192.168.64.12" in decided["csr-2"]["message"]
    for name, address in (("csr-3", "192.168.64.1"), ("csr-4", "192.168.64.2")):
        assert f"{address} is an address of the API server" in decided[name]["message"], "of this Mac, or of another one"
    assert not waiting


async def test_with_the_operator_serving_certificates_are_left_to_it() -> None:
    """Also while it does not run: two approvers could disagree. Requests of tokens are still decided here."""
    joining = _joining()
    joining["metadata"]["name"] = "joining"
    waiting, decided = await _decided(SIGNERS, csr(), joining)
    assert {name: one["type"] for name, one in decided.items()} == {"joining": "Approved"}
    assert waiting, "the chart may be removed while the request is pending"

"""One URL for all models: two deployments behind routers, keys that are rotated, and a model that sleeps and is woken."""

import base64
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial

import pytest
from thunderfleet_localcluster.errors import LocalClusterError

from tests.support.line import CHART, INSTALL_SECONDS, SYSTEM, Answer, Deployment, Json, Line, chat
from tests.support.waiting import until

ONE_MAC = {"nodes": {"min": 1, "max": 1}, "benchmark": {"promptTokens": 2, "generationTokens": 1}}
SLEEPS = {"minReplicas": 0, "maxReplicas": 1, "scaleToZeroAfterSeconds": 3}
ROUTERS = "app.kubernetes.io/component=router"


def upgrade(line: Line, *values: str) -> None:
    line.cluster.helm(
        *("upgrade", "thunderfleet", str(CHART), "--namespace", SYSTEM, "--reuse-values"),
        *("--set", ",".join(values), "--wait", "--timeout", f"{INSTALL_SECONDS}s"),
        seconds=INSTALL_SECONDS + 30,
    )


@pytest.fixture(scope="module")
def line(desk: Line) -> Iterator[Line]:
    """With routers, as from an upgrade of the chart."""
    upgrade(desk, "router.enabled=true")
    yield desk
    upgrade(desk, "router.enabled=false")
    until(lambda: not desk.items("pods", "-n", SYSTEM, "-l", ROUTERS), "the routers are gone")


def store_keys(deployment: Deployment, **keys: str) -> None:
    data = {name: base64.b64encode(key.encode()).decode() for name, key in keys.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": deployment.namespace}}
    deployment.kubectl("apply", "-f", "-", text=json.dumps({**secret, "data": data}))


def ask(line: Line, url: str, model: str, key: str | None = None) -> Answer:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return line.request(f"{url}/chat/completions", {**chat("Where are you?", 4), "model": model}, headers)


class Asked:
    """A request that waits, in a thread."""

    def __init__(self, line: Line, url: str, deployment: Deployment, key: str, seconds: float = 120.0) -> None:
        self.answers: list[Answer] = []
        bearer = {"Authorization": f"Bearer {key}"}
        body = {**chat("Where are you?", 4), "model": f"{deployment.namespace}/{deployment.name}"}
        until(lambda: deployment.name in line.request(f"{url}/models", headers=bearer).body, "the router knows the key", 30)

        def wait() -> None:
            self.answers.append(line.request(f"{url}/chat/completions", body, bearer, seconds))

        threading.Thread(target=wait, daemon=True).start()

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]


def accepted(line: Line, url: str, model: str, key: str) -> bool:
    return ask(line, url, model, key).status == 200


def routers(deployment: Deployment) -> list[str]:
    return [str(one["url"]) for one in deployment.status.get("endpoints", [])]


def pods(deployment: Deployment) -> set[str]:
    """UIDs of its pods."""
    return {str(item["metadata"]["uid"]) for item in deployment.children() if item["kind"] == "Pod"}


def asleep(deployment: Deployment) -> bool:
    return not deployment.status.get("groups") and not pods(deployment)


def entities(line: Line, url: str, credential: str, **headers: str) -> tuple[int, dict[str, Json]]:
    """Status and first entities of the page's stream, by id."""
    sent = {"Authorization": f"Bearer {credential}", **headers}
    request = urllib.request.Request(url.removesuffix("/v1") + "/api/feed", headers=sent)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": line.cluster.proxy}))
    found: dict[str, Json] = {}
    try:
        with opener.open(request, timeout=30) as stream:
            for text in stream:
                found |= {one["id"]: one for one in json.loads(text)["put"]} if text.strip() else {}
                if any(name.startswith("mac/") for name in found) >= ("." in credential) and found:
                    return 200, found
            return 200, found
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {}


def check_what_routers_read(line: Line) -> None:
    """By what programs show that they work: Leases, and the pods of the release, but no others."""
    can = ("auth", "can-i", f"--as=system:serviceaccount:{SYSTEM}:thunderfleet-router")
    lease = "leases.coordination.k8s.io"
    for words in (
        ("list", lease, "-n", "kube-node-lease"),
        ("get", f"{lease}/kube-scheduler", "-n", "kube-system"),
        ("get", f"{lease}/thunderfleet-operator", "-n", SYSTEM),
        ("list", "daemonsets.apps", "-n", SYSTEM),
        ("list", "pods", "-n", SYSTEM),
    ):
        assert line.kubectl(*can, *words).strip() == "yes", words
    for refused in (("list", "pods", "-n", "default"), ("list", "pods", "-A"), ("list", lease, "-n", "kube-system")):
        with pytest.raises(LocalClusterError, match="no"):
            line.kubectl(*can, *refused)


def check_page(line: Line, url: str, served: Deployment) -> None:
    """The page of a router: a viewer's token shows the fleet, a key its own models, and nothing else shows anything."""
    account = ("-n", served.namespace, "viewer")
    line.kubectl("create", "serviceaccount", *account)
    token = line.kubectl("create", "token", *account, "--audience=thunderfleet-page").strip()
    assert entities(line, url, token)[0] == 403, "a token alone gives no right"
    subject = f"--serviceaccount={served.namespace}:viewer"
    line.kubectl("create", "clusterrolebinding", "viewer", "--clusterrole=thunderfleet-page-viewer", subject)
    try:
        fleet = until(lambda: entities(line, url, token)[1], "the viewer sees the fleet", 40)
        assert {f"mac/{name}" for name in line.macs} <= fleet.keys()
        plain = line.kubectl("create", "token", *account).strip()
        assert entities(line, url, plain)[0] == 401, "a token for the API server is none for the page"
        assert entities(line, url, token, Host="attacker.example")[0] == 403
        assert entities(line, url, token, Origin="https://attacker.example")[0] == 403
    finally:
        line.kubectl("delete", "clusterrolebinding", "viewer")
    check_what_routers_read(line)
    name = f"{served.namespace}/{served.name}"
    until(lambda: entities(line, url, "sk-people")[1].keys() == {f"model/{name}"}, "a key shows its own model")
    assert entities(line, url, "sk-stranger")[0] == 401


def test_two_deployments_behind_one_url(line: Line) -> None:
    served = line.deploy("shared", **ONE_MAC, replicas=2, server={"apiKeySecret": "keys"})
    store_keys(served, ci="sk-ci", people="sk-people")
    sleeper = line.deploy("sleeper", **ONE_MAC, autoscaling=SLEEPS, server={"apiKeySecret": "keys", "aliases": ["gpt-tiny"]})
    store_keys(sleeper, ci="sk-sleeper")
    served.until_ready()
    served.until(lambda: len(routers(served)) == len(line.macs), "status has the router of each Mac")
    name = f"{served.namespace}/{served.name}"
    for url in routers(served):
        until(partial(accepted, line, url, name, "sk-ci"), f"{url} serves {name}")
        assert ask(line, url, name, "sk-stranger").status == 401
    service = line.json("get", "service", served.name, "-n", served.namespace)["spec"]
    assert service["type"] == "ClusterIP" and [port["port"] for port in service["ports"]] == [80]
    selector = f"kubernetes.io/service-name={served.name}"
    slices = line.items("endpointslices", "-n", served.namespace, "-l", selector)
    assert sorted(address for one in slices for end in one["endpoints"] for address in end["addresses"]) == sorted(
        url.split("//")[1].split(":")[0] for url in routers(served)
    )

    # What somebody deletes or changes of the way to the routers is as before soon.
    names = [one["metadata"]["name"] for one in slices]
    served.kubectl("delete", "endpointslice", *names)
    served.kubectl("patch", "service", served.name, "--type=merge", "-p", '{"spec": {"selector": {"app": "other"}}}')
    found = partial(line.items, "endpointslices", "-n", served.namespace, "-l", selector)
    until(lambda: set(names) <= {one["metadata"]["name"] for one in found()}, "the EndpointSlice is restored")
    of_service = partial(line.json, "get", "service", served.name, "-n", served.namespace)
    until(lambda: not of_service()["spec"].get("selector"), "the selector is removed", describe=lambda: str(of_service()))

    # A key that is removed is refused within seconds, without a restart.
    url = routers(served)[0]
    before = pods(served)
    store_keys(served, people="sk-people")
    until(lambda: ask(line, url, name, "sk-ci").status == 401, "the removed key is refused", 10)
    assert ask(line, url, name, "sk-people").status == 200
    assert pods(served) == before

    check_page(line, url, served)

    # A model without requests sleeps. Only a request with a valid key wakes it, under any of its names.
    until(lambda: asleep(sleeper), "the model sleeps", 90, describe=sleeper.conditions)
    assert sleeper.until_condition("Ready", "False", "Asleep")
    with pytest.raises(LocalClusterError, match="replicas cannot be changed while autoscaling is set"):
        sleeper.kubectl("scale", "md", sleeper.name, "--replicas=2")
    assert ask(line, url, "gpt-tiny", "sk-stranger").status == 401
    assert asleep(sleeper)
    answer = ask(line, url, "gpt-tiny", "sk-sleeper")
    assert (answer.status, answer.json["model"] != "") == (200, True), answer.body
    until(lambda: asleep(sleeper), "the model sleeps again", 90, describe=sleeper.conditions)
    sleeper.patch({"suspend": True})
    sleeper.until_condition("Ready", "False", "Suspended")
    refused = ask(line, url, "gpt-tiny", "sk-sleeper")
    assert refused.status == 503 and "suspend" in refused.body, refused.body
    for deployment in (served, sleeper):
        line.forget(deployment)


def waiting(line: Line, url: str) -> float:
    """Requests that wait in a router, by its metrics."""
    text = line.request(url.removesuffix("/v1") + "/metrics").body
    return sum(float(one.split()[1]) for one in text.splitlines() if one.startswith("thunderfleet_router_requests_waiting "))


def test_requests_that_wait_end_with_their_key_and_with_their_model(line: Line) -> None:
    nowhere = {"nodes": {"min": 1, "max": 1, "selector": {"kubernetes.io/hostname": "nowhere"}}}
    never = line.deploy("never", **(ONE_MAC | nowhere), server={"apiKeySecret": "keys"})
    store_keys(never, ci="sk-removed", people="sk-kept")
    never.until_condition("Placed", "False", "NoMacFits")
    never.until(lambda: bool(routers(never)), "status has a router")
    url = routers(never)[0]
    removed, kept = Asked(line, url, never, "sk-removed"), Asked(line, url, never, "sk-kept")
    until(lambda: waiting(line, url) == 2, "both wait", 30)
    store_keys(never, people="sk-kept")
    until(lambda: removed.answers, "the request of the removed key ends", 20)
    assert removed.statuses == [401] and "sk-removed" not in removed.answers[0].body
    assert waiting(line, url) == 1 and not kept.answers
    line.forget(never)
    until(lambda: kept.answers, "the request for the deleted model ends", 20)
    assert kept.statuses == [404] and "deleted" in kept.answers[0].body
    assert waiting(line, url) == 0

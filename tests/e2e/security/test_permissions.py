"""RBAC rules of the chart compared with the requests in the audit log: none is missing, none is unused.

A small fleet goes through everything that needs a right: it joins, is profiled, serves, scales down and is removed.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import remove
from thunderfleet_localcluster.models import tinymodel

from tests.support import yamltext
from tests.support.line import MEASURED
from tests.support.waiting import until

Json = dict[str, Any]
Right = tuple[str, str, str]

CHART = Path(__file__).parents[3] / "charts" / "thunderfleet"
NAMESPACE = "thunderfleet-system"
ACCOUNTS = ("thunderfleet-operator", "thunderfleet-agent", "thunderfleet-test")
WAIT_SECONDS = 120.0
FLEET = """\
machines:
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true}
  - {name: linux-1, kind: linux}
cables:
  - {a: "studio-1:1", b: "studio-2:1", speed: 80}
"""
DEPLOYMENT = """\
apiVersion: thunderfleet.io/v1alpha1
kind: ModelDeployment
metadata: {name: tiny, namespace: default}
spec:
  model: {repository: thunderfleet/tiny-qwen2}
  nodes: {min: 1, max: 1}
"""


class Audit:
    """Requests of the chart's service accounts from the audit log; each part of the log is read once."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = 0
        self.used: dict[str, set[Right]] = {account: set() for account in ACCOUNTS}
        self.refused: list[str] = []

    def read(self) -> None:
        with self._log.open() as file:
            file.seek(self._offset)
            while (line := file.readline()).endswith("\n"):
                self._offset = file.tell()
                self._take(json.loads(line))

    def _take(self, event: Json) -> None:
        account = event["user"]["username"].removeprefix(f"system:serviceaccount:{NAMESPACE}:")
        about = event.get("objectRef") or {}
        if account not in self.used or "resource" not in about:
            return
        code = (event.get("responseStatus") or {}).get("code")
        resource = "/".join(word for word in (about["resource"], about.get("subresource")) if word)
        if code in (403, 422):
            self.refused.append(f"{account} {event['verb']} {resource} {about.get('name')}: {code}")
        verbs = [event["verb"], *(["create"] if event["verb"] == "patch" and code == 201 else [])]
        self.used[account].update((about.get("apiGroup", ""), resource, verb) for verb in verbs)
        if resource == "certificatesigningrequests/approval" and code == 200:
            # The admission plugin CertificateApproval asks for it, which is no request in the log.
            self.used[account].add((about["apiGroup"], "signers", "approve"))


def granted(cluster: Cluster) -> dict[str, set[Right]]:
    """Every right that the release grants to an account, those for the time of its test among them."""
    found: dict[str, set[Right]] = {account: set() for account in ACCOUNTS}
    for part in ("manifest", "hooks"):
        text = cluster.helm("get", part, "thunderfleet", "--namespace", NAMESPACE).stdout
        for item in yamltext.load_all(text):
            if item and item["kind"] in ("Role", "ClusterRole") and item["metadata"]["name"] in found:
                # A role is called as the account that it is bound to; a unit test holds the chart to that.
                found[item["metadata"]["name"]] |= {
                    (group, resource, verb)
                    for rule in item["rules"]
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for verb in rule["verbs"]
                }
    return found


@pytest.fixture(scope="module")
def audited() -> Iterator[Cluster]:
    cluster = Cluster.start(FLEET, name=f"e2e-audit-{os.getpid()}", audit=True)
    try:
        yield cluster
    finally:
        cluster.stop()
        remove(cluster.folder, everything=True)


def _service_is_updated(cluster: Cluster) -> None:
    """The Service is as an older version would have written it. Nobody but the operator may do that while it is reserved."""

    def helm(reserved: str) -> None:
        values = ("--reuse-values", "--set", f"operator.reserveObjects={reserved}")
        cluster.helm("upgrade", "thunderfleet", str(CHART), "--namespace", NAMESPACE, *values)

    def annotate() -> bool:
        note = ("annotate", "service", "tiny", "thunderfleet.io/hash=older", "--overwrite")
        return cluster.kubectl(*note, check=False).returncode == 0

    def hash_of() -> str:
        service = json.loads(cluster.kubectl("get", "service", "tiny", "-o", "json").stdout)
        return str(service["metadata"]["annotations"]["thunderfleet.io/hash"])

    before = hash_of()
    assert not annotate(), "the policies refuse it"
    helm("false")
    until(annotate, "the policies are gone", WAIT_SECONDS)
    until(lambda: hash_of() == before, "the operator updates its Service", WAIT_SECONDS, describe=hash_of)
    helm("true")


def _model_is_asked_of_the_hub(cluster: Cluster) -> None:
    """A ModelDeployment whose model is on no Mac gets a ModelCache, which follows its spec. There is no hub to be reached."""
    text = DEPLOYMENT.replace("name: tiny", "name: absent").replace("thunderfleet/tiny-qwen2", "nobody/absent")
    cluster.kubectl("apply", "-f", "-", text=text)

    def cache() -> Any:
        found = cluster.kubectl("get", "mc", "absent", "-o", "json", check=False)
        return json.loads(found.stdout) if found.returncode == 0 else {}

    until(lambda: cache().get("status"), "the operator reports on the ModelCache", WAIT_SECONDS)
    cluster.kubectl("patch", "md", "absent", "--type=merge", "-p", '{"spec": {"model": {"revision": "other"}}}')
    until(lambda: cache()["spec"]["revision"] == "other", "the ModelCache has the new revision", WAIT_SECONDS)
    cluster.kubectl("delete", "md", "absent", "--timeout=60s")


def _certificate_is_requested(cluster: Cluster, mac: str) -> None:
    """By a kubelet that has none, as after it has joined."""
    machine = cluster.machines[mac]
    machine.kill_kubelet()
    (machine.folder / "kubelet" / "identity" / "serving.pem").unlink()
    machine.start_kubelet()


def test_every_right_is_used_and_none_is_missing(audited: Cluster) -> None:
    audit = Audit(audited.logs / "audit.log")
    tinymodel.make(audited.models / "thunderfleet" / "tiny-qwen2")
    agent = f"agent.modelFolders={{{audited.models}}},agent.modelsIntervalSeconds=2"
    values = ",".join(("operator.replicas=1", agent, *MEASURED))
    audited.helm("install", "thunderfleet", str(CHART), "--namespace", NAMESPACE, "--create-namespace", "--set", values)
    tested = audited.helm("test", "thunderfleet", "--namespace", NAMESPACE, seconds=180)
    for line in ("ok: the API server serves", ": leader", "every Mac has a NodeProfile: studio-1, studio-2"):
        assert line in tested.stdout + tested.stderr
    rights = granted(audited)

    def left() -> str:
        return audited.kubectl("get", "serviceaccounts,pods,roles", "-n", NAMESPACE, "-o", "name").stdout

    until(lambda: "thunderfleet-test" not in left(), "helm test leaves nothing behind", WAIT_SECONDS, describe=left)

    def both_ends() -> bool:
        links = json.loads(audited.kubectl("get", "tbl", "-o", "json").stdout)["items"]
        return [len(link.get("status", {}).get("endpoints", [])) for link in links] == [2]

    until(
        both_ends,
        "both ends of the cable are in its link",
        WAIT_SECONDS,
        describe=lambda: audited.kubectl("get", "tbl", "-o", "yaml").stdout,
    )

    _certificate_is_requested(audited, "studio-1")
    audited.kubectl("apply", "-f", "-", text=DEPLOYMENT)
    ready = audited.kubectl(
        "wait", "md/tiny", "--for=condition=Ready", f"--timeout={WAIT_SECONDS:.0f}s", seconds=WAIT_SECONDS + 10, check=False
    )
    assert ready.returncode == 0, audited.kubectl("describe", "md", "tiny").stdout

    def children() -> str:
        managed = "app.kubernetes.io/managed-by=thunderfleet-operator"
        return audited.kubectl("get", "pods,configmaps,secrets", "-l", managed, "-o", "name").stdout

    assert children()
    _model_is_asked_of_the_hub(audited)
    _service_is_updated(audited)
    audited.kubectl("scale", "md/tiny", "--replicas=0")
    until(lambda: not children(), "the children are deleted", WAIT_SECONDS, describe=children)
    audited.kubectl("delete", "md", "tiny", "--timeout=30s")

    for name in ("studio-1", "studio-2"):
        audited.machines[name].off()
        audited.kubectl("delete", "node", name)

    def unused() -> dict[str, list[Right]]:
        audit.read()
        return {account: sorted(rights[account] - audit.used[account]) for account in ACCOUNTS}

    until(
        lambda: not any(unused().values()),
        "every right that the chart grants is used",
        WAIT_SECONDS,
        describe=lambda: f"granted and never used: {unused()}; refused: {audit.refused}",
    )
    assert audit.refused == []
    assert [(account, right) for account in ACCOUNTS for right in audit.used[account] - rights[account]] == []

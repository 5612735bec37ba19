"""What containers get, and how pods live and end, on the real control plane as users see it: through kubectl."""

import json
import os
import re

import pytest
import yaml

from tests.support.kubelets import MAC, ROOT, Fleet, alive_with, container, first, pod, waits_for
from tests.support.waiting import until


def test_init_containers_come_first_and_in_order(fleet: Fleet) -> None:
    item = fleet.running("whole")
    assert fleet.exec("whole", "cat", "empty/order") == "one\ntwo\n"
    for status in item["status"]["initContainerStatuses"]:
        assert status["state"]["terminated"]["reason"] == "Completed"
    conditions = {entry["type"]: entry["status"] for entry in item["status"]["conditions"]}
    assert conditions["Initialized"] == "True"


def test_environment_comes_from_every_source_and_nowhere_else(fleet: Fleet) -> None:
    fleet.running("whole")
    seen: dict[str, str] = json.loads(until(lambda: fleet.log("whole"), "its environment is printed"))
    address = fleet.cluster.machines[MAC].address
    wanted = {
        "PLAIN": "plain",
        "EXPANDED": "plain-$(NODE)-$(PLAIN)",
        "NODE": MAC,
        "LATE": MAC,
        "HOST_IP": address,
        "LABEL": "whole",
        "MEMORY": "64",
        "PASSWORD": "s3cret",
        "password": "s3cret",
        "HOSTNAME": MAC,
    }
    assert {name: seen.get(name) for name in wanted} == wanted
    assert seen["GREETING"] == seen["CM_greeting"] in ("old", "new")
    assert seen["HOME"] == seen["CONTAINER_SANDBOX_MOUNT_POINT"]
    assert seen["TMPDIR"] == seen["HOME"] + "/tmp"
    machine = fleet.cluster.machines[MAC]
    assert seen["PATH"].split(":")[:2] == [str(machine.folder / "bin"), str(fleet.cluster.image_folder / "bin")]
    ours = {
        "GREETING",
        "CM_greeting",
        "HOME",
        "USER",
        "LOGNAME",
        "TMPDIR",
        "PATH",
        "CONTAINER_SANDBOX_MOUNT_POINT",
        "PYTHONPATH",
    }
    service = {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS"}
    shell = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    image = dict(
        entry.split("=", 1) for entry in json.loads((fleet.cluster.image_folder / "config.json").read_text()).get("Env") or []
    )
    assert {name: seen.get(name) for name in image.keys() - ours} == {name: image[name] for name in image.keys() - ours}
    assert seen.keys() - wanted.keys() - ours - service - shell - image.keys() == set()


def test_volumes_of_every_kind(fleet: Fleet) -> None:
    fleet.running("whole")
    (fleet.scratch / "from-host").write_text("of the host")
    words = ["host/from-host", "secret/password", "all/password", "all/name", "downward/labels"]
    assert [fleet.exec("whole", "cat", word) for word in words] == [
        "of the host",
        "s3cret",
        "s3cret",
        "whole",
        'app="whole"',
    ]
    assert {fleet.exec("whole", "cat", word) for word in ("config/greeting", "one", "all/deep/greeting")} <= {"old", "new"}
    assert fleet.exec("whole", "stat", "-L", "-c", "%a", "secret/password").strip() == "400"
    assert fleet.exec("whole", "readlink", "config/greeting").strip() == "..data/greeting"
    fleet.exec("whole", "sh", "-c", "echo mine > host/from-pod; echo kept > empty/file")
    assert (fleet.scratch / "from-pod").read_text() == "mine\n"


ASK_WHO = """
import json, os, ssl, urllib.request
folder = os.environ["CONTAINER_SANDBOX_MOUNT_POINT"] + "/{folder}"
usual = os.environ["CONTAINER_SANDBOX_MOUNT_POINT"] + "/var/run/secrets/kubernetes.io/serviceaccount"
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
body = {{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}}
request = urllib.request.Request(
    f"https://{{host}}:{{port}}/apis/authentication.k8s.io/v1/selfsubjectreviews", json.dumps(body).encode(),
    {{"Authorization": "Bearer " + open(folder + "/token").read(), "Content-Type": "application/json"}})
context = ssl.create_default_context(cafile=usual + "/ca.crt")
print(urllib.request.urlopen(request, context=context, timeout=20).read().decode())
"""


@pytest.mark.parametrize("folder", ["all", "var/run/secrets/kubernetes.io/serviceaccount"])
def test_token_of_the_service_account_authenticates(fleet: Fleet, folder: str) -> None:
    fleet.running("whole")
    answer = json.loads(fleet.exec("whole", "python3", "-c", ASK_WHO.format(folder=folder)))
    user = answer["status"]["userInfo"]
    assert user["username"] == "system:serviceaccount:default:default"
    assert user["extra"]["authentication.kubernetes.io/pod-name"] == ["whole"]
    assert user["extra"]["authentication.kubernetes.io/node-name"] == [MAC]


def test_containers_run_as_the_requested_user_or_an_unprivileged_one(fleet: Fleet) -> None:
    fleet.running("who")
    uid, gid = until(lambda: found if len(found := fleet.log("who").split()) == 2 else None, "it has printed its user")
    if not ROOT:
        assert (int(uid), int(gid)) == (os.geteuid(), os.getegid())
        return
    assert uid == gid
    assert int(uid) in pod_users(fleet), "a user of the pool"
    fleet.running("other-user")
    until(lambda: fleet.log("other-user").split() == ["2001", "3000"], "it has printed its user")
    # Programs that exec starts are the container's, too.
    assert fleet.exec("other-user", "id", "-u").strip() == "2001"
    assert fleet.exec("who", "id", "-u").strip() == uid
    # Containers run as root only on request.
    until(lambda: fleet.log("root").split() == ["0"], "root")


def pod_users(fleet: Fleet) -> range:
    config = yaml.safe_load((fleet.cluster.machines[MAC].folder / "kubelet.yaml").read_text())["podUsers"]
    return range(config["first"], config["first"] + config["count"])


# Everything that a pod has: its folder, and what its processes show. "root" looks in the same way, so the look is not blind.
SPY = """
for place in {places}; do
  if cat "{pod}/$place" || ls "{pod}/$place"; then echo "read $place"; else echo "refused $place"; fi
done 2>/dev/null
grep -l {uid} /proc/[0-9]*/environ 2>/dev/null | grep -q . && echo "read environment"
echo done
"""
PLACES = (
    *("pod.json", "containers", "containers/main/0/spec.json", "empty/empty", "volumes/secret", "volumes/all", "logs"),
    *("containers/main/sandbox/0", "containers/main/sandbox/0/all/token", "containers/main/sandbox/0/secret/password"),
    *("../../identity/client.pem", ".."),
)


@pytest.mark.skipif(not ROOT, reason="only a kubelet that runs as root gives pods users of their own")
def test_a_pod_reads_nothing_of_another_pod(fleet: Fleet) -> None:
    users = {name: fleet.exec(name, "id", "-u").strip() for name in ("whole", "who", "talks") if fleet.running(name)}
    assert len(set(users.values())) == 3
    uid = fleet.pod("whole")["metadata"]["uid"]
    script = SPY.format(places=" ".join(PLACES), pod=fleet.cluster.machines[MAC].folder / "kubelet/pods" / uid, uid=uid)
    for name in ("who", "other-user"):
        fleet.running(name)
        assert fleet.exec(name, "sh", "-c", script).splitlines() == [*(f"refused {place}" for place in PLACES), "done"]
    fleet.running("root")
    seen = fleet.exec("root", "sh", "-c", script)
    assert [place for place in PLACES if f"read {place}\n" not in seen] == []
    assert "read environment" in seen


def test_a_pod_names_no_object_of_another_namespace(fleet: Fleet) -> None:
    """The API server takes any text as the name of a Secret in a volume, and a kubelet may read what its pods name."""
    image, theirs = fleet.cluster.image, "elsewhere"
    mount = [{"name": "v", "mountPath": "/v"}]
    own = [{"name": "v", "secret": {"secretName": "keys"}}]
    waits = pod("theirs", [container(image, "sleep 3600", volumeMounts=mount)], volumes=own)
    waits["metadata"]["namespace"] = theirs
    fleet.kubectl("create", "namespace", theirs)
    fleet.kubectl("create", "secret", "generic", "keys", "--from-literal=key=s3cret", "-n", theirs)
    until(lambda: fleet.api.get(f"/api/v1/namespaces/{theirs}/serviceaccounts/default"), "pods can be created there")
    reach = f"../../{theirs}/secrets/keys"
    sources: dict[str, dict[str, object]] = {
        "alone": {"secret": {"secretName": reach}},
        "projected": {"projected": {"sources": [{"secret": {"name": reach}}]}},
    }
    reaching = [
        pod(f"reaches-{name}", [container(image, "cat v/key", volumeMounts=mount)], volumes=[{"name": "v", **source}])
        for name, source in sources.items()
    ]
    try:
        fleet.apply(waits)
        found = f"/api/v1/namespaces/{theirs}/pods/theirs"
        until(lambda: (fleet.api.get(found) or {}).get("status", {}).get("phase") == "Running", "the kubelet has their Secret")
        fleet.apply(*reaching)
        for one in reaching:
            name = one["metadata"]["name"]
            event = until(lambda name=name: fleet.events(name).get("FailedMount"), f"{name} is refused")  # type: ignore[misc]
            assert reach in event and "is not a path of the API" in event
            assert fleet.pod(name)["status"]["phase"] == "Pending"
    finally:
        fleet.kubectl("delete", "pod", *(one["metadata"]["name"] for one in reaching), "--ignore-not-found", "--wait=false")
        fleet.kubectl("delete", "namespace", theirs, "--wait=false")


def test_the_node_says_whether_pods_share_a_user(fleet: Fleet) -> None:
    found = {item["type"]: item for item in fleet.get("node", MAC)["status"]["conditions"]}["PodsShareUser"]
    assert (found["status"], found["reason"]) == (("False", "OneUserPerPod") if ROOT else ("True", "KubeletNotRoot"))


def test_a_mac_is_kept_awake_while_pods_run(fleet: Fleet) -> None:
    """A recorded caffeinate runs tail, which ends when the process that -w names ends."""
    fleet.running("probed")
    machine = fleet.cluster.machines[MAC]

    def waits() -> list[str]:
        shown = machine.run(["pgrep", "-af", r"tail -s 5 --pid=[0-9]+ -f /dev/null"], seconds=20).stdout.split()
        return [word.partition("=")[2] for word in shown if word.startswith("--pid=")]

    pid = until(waits, "it is kept awake")[0]
    assert "thunderfleet" in machine.run(["ps", "-o", "args=", "-p", pid], seconds=20).stdout


# Lifecycle


def test_startup_readiness_and_liveness_probes(fleet: Fleet) -> None:
    fleet.running("probed")
    fleet.await_pod("probed", lambda item: first(item).get("started") is False, "is not started")
    until(lambda: "Unhealthy" in fleet.events("probed"), "the startup probe fails")
    fleet.exec("probed", "touch", "begun")
    item = fleet.await_pod("probed", lambda item: first(item).get("started") is True, "is started")
    assert first(item)["ready"] is False
    fleet.exec("probed", "touch", "ready")
    fleet.await_pod("probed", lambda item: first(item).get("ready") is True, "is ready")
    fleet.exec("probed", "rm", "ready")
    item = fleet.await_pod("probed", lambda item: first(item).get("ready") is False, "is ready no more")
    assert first(item)["restartCount"] == 0
    fleet.exec("probed", "touch", "deaf")
    item = fleet.await_pod("probed", lambda item: first(item).get("restartCount") == 1, "is restarted")
    assert first(item)["lastState"]["terminated"]["exitCode"] == 143
    until(lambda: "liveness probe failed" in fleet.events("probed").get("Killing", ""), "the Event")


def test_a_grpc_probe_follows_the_health_service(fleet: Fleet) -> None:
    def said(text: str) -> bool:
        events = fleet.get("events", "--field-selector", "involvedObject.name=health")["items"]
        return any(event["reason"] == "Unhealthy" and text in event["message"] for event in events)

    fleet.await_pod("health", lambda item: first(item).get("ready") is True, "is ready")
    fleet.exec("health", "touch", "sick")
    fleet.await_pod("health", lambda item: first(item).get("ready") is False, "is ready no more")
    until(lambda: said('service unhealthy (responded with "NOT_SERVING")'), "the Event")
    fleet.exec("health", "rm", "sick")
    item = fleet.await_pod("health", lambda item: first(item).get("ready") is True, "is ready again")
    assert first(item)["restartCount"] == 0


def test_restart_policies_and_crash_loop_back_off(fleet: Fleet) -> None:
    failed = fleet.await_pod("fails", lambda item: item["status"].get("phase") == "Failed", "fails")
    assert first(failed)["state"]["terminated"]["exitCode"] == 3
    assert first(failed)["state"]["terminated"]["reason"] == "Error"
    assert first(failed)["restartCount"] == 0
    done = fleet.await_pod("succeeds", lambda item: item["status"].get("phase") == "Succeeded", "succeeds")
    assert first(done)["state"]["terminated"]["reason"] == "Completed"
    again = fleet.await_pod("again", lambda item: item["status"].get("phase") == "Succeeded", "succeeds at the second try")
    assert first(again)["restartCount"] == 1
    assert fleet.log("again") == "try 1\n"
    crashes = fleet.await_pod(
        "crashes",
        lambda item: first(item).get("restartCount", 0) >= 1 and waits_for("CrashLoopBackOff")(item),
        "waits for another restart",
    )
    message = first(crashes)["state"]["waiting"]["message"]
    assert re.match(r"back-off (10|20|40|80|160|300)s restarting failed container", message)
    assert first(crashes)["lastState"]["terminated"]["exitCode"] == 5
    assert fleet.log("crashes", "--previous") == "here I crash\n"


def test_deleted_pod_is_asked_first_and_ended_as_a_whole(fleet: Fleet) -> None:
    item = fleet.running("stubborn")
    uid = item["metadata"]["uid"]
    until(lambda: "up" in fleet.log("stubborn"), "it says that it is up")
    until(lambda: len(alive_with(uid)) >= 3, "its child runs")
    fleet.kubectl("delete", "pod", "stubborn", "--wait=true", "--timeout=60s")
    assert (fleet.scratch / "prestop").read_text() == "stopping\n"
    assert alive_with(uid) == []
    # A process that was killed may have left GPU memory wired: an Event must say so.
    until(lambda: "ExceededGracePeriod" in fleet.events("stubborn"), "the Event")


def test_pods_that_cannot_run_here_wait_and_say_why(fleet: Fleet) -> None:
    foreign = fleet.await_pod("foreign", waits_for("NotRunnableOnMac"), "waits")
    assert "kubernetes.io/os: linux" in first(foreign)["state"]["waiting"]["message"]
    assert foreign["status"]["phase"] == "Pending"
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "unbound"}, "target": {"kind": "Node", "name": MAC}}
    fleet.kubectl("create", "--raw", "/api/v1/namespaces/default/pods/unbound/binding", "-f", "-", text=json.dumps(binding))
    unasked = fleet.await_pod("unasked", waits_for("NotRunnableOnMac"), "waits")
    assert "set runtimeClassName: macos" in first(unasked)["state"]["waiting"]["message"]
    unbound = fleet.await_pod("unbound", lambda item: item["status"]["phase"] == "Failed", "is rejected")
    assert unbound["status"]["reason"] == "NodeAffinity"
    own = fleet.await_pod("own-network", waits_for("HostNetworkRequired"), "waits")
    assert "hostNetwork: true" in first(own)["state"]["waiting"]["message"]

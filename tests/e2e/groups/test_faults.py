"""Faults on a real control plane with real processes, and what must hold after each."""

import asyncio
import re
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from thunderfleet_cli.connection import Connection
from thunderfleet_cli.view.picture import picture
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_localcluster.recorded.files import replace_file
from thunderfleet_operator.watch.leader import DURATION_SECONDS
from thunderfleet_view.facts import Picture
from thunderfleet_view.problems import silent_macs
from thunderfleet_view.renewals import noted

from tests.support.line import Alone, Deploy, Deployment, Line, condition
from tests.support.suite.tiers import quick
from tests.support.waiting import until

Json = dict[str, Any]

PROMPT, TOKENS = tinymodel.MESSAGES[0]["content"], 16
SYSTEM = "thunderfleet-system"
OPERATORS = ("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=operator")
AWAY_SECONDS = DURATION_SECONDS + 2.0
"""Longer than the operator's Lease lasts."""
GONE_SECONDS = 30.0
"""Seconds within which everything of a deleted ModelDeployment must be gone."""
MAC_LOST_SECONDS = 150.0
"""The control plane's own 50 s until a silent Node is not Ready, then a placement and a start."""

SILENT_SECONDS = 180.0
"""More than the control plane's own 50 s."""

SUPERVISOR = "thunderfleet-runner serve"
RANK = "thunderfleet_runner.rank"


def containers(served: Deployment) -> dict[str, tuple[str, str, int]]:
    """UID, container ID and restarts of every runner pod."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            pod["status"]["containerStatuses"][0]["containerID"],
            pod["status"]["containerStatuses"][0]["restartCount"],
        )
        for pod in served.children()
        if pod["kind"] == "Pod"
    }


def pids(served: Deployment) -> list[str]:
    """Processes of its pods, by machine, process id and command; what each is doing just now does not count."""
    processes, _ = served.seen()
    own = [process.split(" ", 3) for process in processes if RANK in process or SUPERVISOR in process]
    return sorted(f"{machine} {pid} {command}" for machine, pid, _state, command in own)


def versions(served: Deployment) -> dict[str, str]:
    """The parts of objects that must not change in a stable cluster: UID and spec of pods, and everything of other objects."""
    found = {}
    for child in served.children():
        metadata = child["metadata"]
        pod = child["kind"] == "Pod"
        found[f"{child['kind']} {metadata['name']}"] = (
            f"{metadata['uid']} {metadata.get('generation')}" if pod else f"{metadata['uid']} {metadata['resourceVersion']}"
        )
    return found


def kill(line: Line, machine: str, pattern: str, signal: str = "KILL") -> None:
    """A signal to the processes of a machine whose command matches; there must be one."""
    done = line.run(machine, "pkill", f"-{signal}", "-f", pattern)
    assert done.returncode == 0, f"nothing on {machine} matches {pattern}: {done.stderr}"


def until_back(served: Deployment, before: Json) -> Json:
    """Waits until status reports that the group broke after ``before`` and serves again; returns its state."""

    def broke() -> bool:
        group = served.group()
        return group.get("lastFailure") != before.get("lastFailure") or group.get("epoch") != before["epoch"]

    served.until(broke, "the failure is in status")
    served.until_ready()
    found: Json = served.group()
    return found


def disturbed(group: Json) -> Json:
    """What changes in a group's status when something disturbs it.

    Other fields change while it serves: its Macs hash their weights, it proves longer passages, predictions are corrected.
    """
    of_group = (
        "uid",
        "epoch",
        "state",
        "coordinator",
        "endpoint",
        "intake",
        "restarts",
        "nextRestartTime",
        "lastFailure",
        "lostPlace",
    )
    of_rank = ("rank", "node", "pod", "address", "state", "attempts", "lastError")
    ranks = [{key: rank.get(key) for key in of_rank} for rank in group["ranks"]]
    return {**{key: group.get(key) for key in of_group}, "ranks": ranks}


# --- restarts of programs ---


def test_kubelets_killed_and_started_again(pair: Deployment, line: Line, alone: Alone) -> None:
    before, processes, node = containers(pair), pids(pair), [rank["node"] for rank in pair.ranks()]
    logs = {pod: pair.kubectl("logs", pod) for pod in before}
    epoch, expected = pair.group()["epoch"], alone(PROMPT, TOKENS)
    killed = datetime.now().astimezone()
    for name in node:
        line.cluster.machines[name].kill_kubelet()
    try:
        assert pair.tokens(PROMPT, TOKENS) == expected, "the group serves while its kubelets are dead"
        assert pids(pair) == processes
        # The log must keep what is written while the pod has no kubelet.
        kill(line, node[1], RANK)
        pair.until(lambda: pids(pair) != processes and pair.answers(), "the group has formed again")
    finally:
        for name in node:
            line.cluster.machines[name].start_kubelet()

    def log(pod: str) -> str:
        return str(line.cluster.kubectl("logs", "-n", pair.namespace, pod, check=False).stdout)

    until(lambda: all(log(pod).startswith(logs[pod]) for pod in before), "kubectl logs returns the whole log")
    until(line.ready_machines, "the nodes are Ready")
    pair.until_ready()
    assert containers(pair) == before, "no container was restarted or replaced"
    since = pair.kubectl("logs", pair.ranks()[0]["pod"], f"--since-time={killed.isoformat()}")
    assert "-> Ready" in since, "the log has what was written while the kubelet was dead"
    assert pair.group()["epoch"] == epoch
    assert pair.tokens(PROMPT, TOKENS) == expected


def unready(served: Deployment) -> int:
    """How many of its pods are not Ready."""
    return sum(condition(child, "Ready").get("status") == "False" for child in served.children())


@pytest.mark.soak
def test_a_group_serves_while_its_kubelets_are_silent(pair: Deployment, line: Line, alone: Alone) -> None:
    """One is frozen and the other is cut off from the API server, for longer than the controller manager waits for it."""
    frozen, cut = (rank["node"] for rank in pair.ranks())
    before, processes, group, expected = containers(pair), pids(pair), pair.group(), alone(PROMPT, TOKENS)

    def silent() -> bool:
        nodes = {item["metadata"]["name"]: condition(item, "Ready")["status"] for item in line.items("nodes")}
        return {nodes[frozen], nodes[cut]} == {"Unknown"}

    line.cluster.machines[frozen].freeze_kubelet()
    line.api_server(cut, "cut")
    try:
        until(silent, "their Nodes are given up", SILENT_SECONDS)
        pair.until(lambda: unready(pair) == len(before), "their pods are not Ready")
        assert pair.tokens(PROMPT, TOKENS) == expected
        assert pids(pair) == processes and pair.is_ready()
    finally:
        line.cluster.machines[frozen].thaw_kubelet()
        line.api_server(cut, "restore")
    until(line.ready_machines, "the nodes are Ready")
    pair.until(lambda: not unready(pair), "their pods are Ready")
    assert containers(pair) == before and pids(pair) == processes, "nothing was restarted or replaced"
    # Checks and benchmark may have ended meanwhile, which are in its status too.
    now, kept = pair.group(), ("epoch", "lastFailure")
    assert [now.get(key) for key in kept] == [group.get(key) for key in kept]
    assert pair.tokens(PROMPT, TOKENS) == expected


@pytest.mark.parametrize("replicas", quick(["the leader"], ["the leader", "both"]))
def test_operator_killed_and_started_again(pair: Deployment, line: Line, replicas: str) -> None:
    # The checks follow a start, and the benchmark follows them. It corrects the prediction, one round after it is in status.
    pair.until_condition("Verified", "True")
    pair.until(lambda: pair.group().get("predicted", {}).get("correctionPercent"), "a benchmark that corrects the prediction")
    lease = ("lease", "thunderfleet-operator", "-n", SYSTEM)
    before, item = versions(pair), pair.get()
    held = line.json("get", *lease)["spec"]
    pods = {pod["metadata"]["name"]: pod for pod in line.items(*OPERATORS)}
    hit = [pod for name, pod in pods.items() if replicas == "both" or held["holderIdentity"].startswith(name)]
    assert len(hit) == (2 if replicas == "both" else 1)
    for pod in hit:
        kill(line, pod["spec"]["nodeName"], "thunderfleet-operator run")

    def led() -> bool:
        return bool(line.json("get", *lease)["spec"]["holderIdentity"] != held["holderIdentity"])

    until(led, "another process leads")

    def reconciled() -> bool:
        """Waits until the current leader has completed a round for the deployment."""
        holder = line.json("get", *lease)["spec"]["holderIdentity"]
        for pod in line.items(*OPERATORS):
            if not holder.startswith(pod["metadata"]["name"]):
                continue
            port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
            try:
                text = line.request(f"http://{pod['status']['podIP']}:{port}/metrics").body
            except OSError:
                return False
            return (
                "thunderfleet_operator_leading 1.0" in text and 'reconciles_total{kind="modeldeployments",result="ok"}' in text
            )
        return False

    until(reconciled, "it has made a round")
    assert versions(pair) == before
    now = pair.get()
    assert now["metadata"]["generation"] == item["metadata"]["generation"]
    assert now["status"] == item["status"], "nothing has changed, so status says the same"

    def restarted() -> bool:
        statuses = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0] for pod in line.items(*OPERATORS)}
        return set(statuses) == set(pods) and all(status["ready"] for status in statuses.values())

    until(restarted, "both replicas are back")
    assert versions(pair) == before


def test_api_server_away_and_then_a_rank_killed(pair: Deployment, line: Line, alone: Alone) -> None:
    before, pods, processes, group = versions(pair), containers(pair), pids(pair), pair.group()
    endpoint, expected = pair.endpoint, alone(PROMPT, TOKENS)
    body: Json = {"model": "thunderfleet/tiny-qwen2", "messages": [{"role": "user", "content": PROMPT}]}
    body |= {"max_tokens": TOKENS, "temperature": 0, "return_token_ids": True}
    line.cluster.component("kube-apiserver", "off")
    try:
        deadline, answers = time.monotonic() + AWAY_SECONDS, 0

        def served_until_then() -> bool:
            nonlocal answers
            answer = line.request(f"{endpoint}/chat/completions", body)
            assert answer.status == 200, answer.body
            assert answer.json["choices"][0]["token_ids"] == expected
            answers += 1
            return time.monotonic() >= deadline

        # Ranks that answer all the time use every processor.
        until(served_until_then, "the group has served while the API server was away", pause=1.0)
        assert answers > 1
        assert line.cluster.kubectl("get", "nodes", "--request-timeout=2s", check=False).returncode != 0, "it was away"
    finally:
        line.cluster.component("kube-apiserver", "on")
    until(lambda: line.cluster.kubectl("get", "--raw=/readyz", check=False).returncode == 0, "the API server answers")
    back = datetime.now().astimezone()

    def renewed() -> bool:
        leases = {item["metadata"]["name"]: item["spec"]["renewTime"] for item in line.items("leases", "-n", "kube-node-lease")}
        leases["operator"] = line.json("get", "lease", "thunderfleet-operator", "-n", SYSTEM)["spec"]["renewTime"]
        return all(datetime.fromisoformat(renewed) > back for renewed in leases.values())

    until(renewed, "all kubelets and the operator renew their leases")
    # The controller manager may have missed so many renewals that it called a Node not Ready.
    until(line.ready_machines, "the nodes are Ready")
    assert versions(pair) == before
    assert pids(pair) == processes
    assert pair.group()["epoch"] == group["epoch"]
    # Watches and status writes work again: a new event reaches status.
    kill(line, group["ranks"][1]["node"], RANK)
    failure = until_back(pair, group)["lastFailure"]
    assert (failure["rank"], failure["node"]) == (1, group["ranks"][1]["node"])
    assert containers(pair) == pods, "a rank's end needs no new pod"
    assert pair.tokens(PROMPT, TOKENS) == expected


def test_macs_lose_power_and_serve_before_the_api_server_is_back(pair: Deployment, line: Line, alone: Alone) -> None:
    group, endpoint, expected = pair.group(), pair.endpoint, alone(PROMPT, TOKENS)
    machines = [line.cluster.machines[rank["node"]] for rank in pair.ranks()]
    body: Json = {"model": "thunderfleet/tiny-qwen2", "messages": [{"role": "user", "content": PROMPT}]}
    body |= {"max_tokens": TOKENS, "temperature": 0, "return_token_ids": True}

    def served() -> bool:
        try:
            answer = line.request(f"{endpoint}/chat/completions", body)
        except OSError:
            return False
        return answer.status == 200 and answer.json["choices"][0]["token_ids"] == expected

    line.cluster.component("kube-apiserver", "off")
    try:
        for machine in machines:
            machine.off()
        assert not served()
        for machine in machines:
            machine.on()
        until(served, "the group serves again")
        assert line.cluster.kubectl("get", "nodes", "--request-timeout=2s", check=False).returncode != 0, "it is still away"
    finally:
        line.cluster.component("kube-apiserver", "on")
    until(lambda: line.cluster.kubectl("get", "--raw=/readyz", check=False).returncode == 0, "the API server answers")
    until(line.ready_machines, "the nodes are Ready")
    pair.until_ready()
    assert pair.group()["epoch"] == group["epoch"], "it was not placed again"
    assert pair.tokens(PROMPT, TOKENS) == expected


# --- parts of a group ---


@pytest.mark.parametrize("rank", quick([0], [0, 1]))
def test_supervisor_killed(pair: Deployment, line: Line, alone: Alone, rank: int) -> None:
    before, pods = pair.group(), containers(pair)
    hit = before["ranks"][rank]
    kill(line, hit["node"], SUPERVISOR)

    def restarted() -> bool:
        status = next(pod for pod in pair.children() if pod["metadata"]["name"] == hit["pod"])["status"]
        return bool(status["containerStatuses"][0]["restartCount"] > pods[hit["pod"]][2])

    pair.until(restarted, "the supervisor's container was restarted")
    pair.until(pair.serves, "the group serves")
    assert {name: pod[0] for name, pod in containers(pair).items()} == {name: pod[0] for name, pod in pods.items()}
    assert len([process for process in pids(pair) if RANK in process]) == 2, "no rank of the old supervisor is left"
    assert pair.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)


def shown(line: Line, served: Deployment) -> Picture:
    """What ``status`` and ``why`` read."""
    return asyncio.run(picture(Connection(line.cluster.kubeconfig, None, served.namespace, None), served.namespace))


def test_mac_off_and_the_group_moves_to_another(pair: Deployment, line: Line, alone: Alone) -> None:
    before, working = pair.group(), shown(line, pair)
    leases = [*working.leases.values(), *working.kubelets.values()]
    assert len(leases) > len(line.cluster.machines) and all(map(noted, leases)), "the API server says when it was renewed"
    assert working.now is not None
    lost = next(rank["node"] for rank in before["ranks"] if rank["node"] != "studio-1")
    line.cluster.machines[lost].off()
    try:

        def moved() -> bool:
            group = pair.group()
            return group.get("epoch") != before["epoch"] and pair.is_ready()

        pair.until(moved, "it serves on another pair", MAC_LOST_SECONDS)
        nodes = {rank["node"] for rank in pair.ranks()}
        assert nodes == {"studio-1", *({"studio-2", "mini-1"} - {lost})}
        # Its cable tells of it long before its Node does.
        failure = pair.group()["lastFailure"]
        assert lost in (failure.get("node", ""), *failure["message"].replace(":", " ").split()), failure
        assert pair.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)

        def left() -> list[str]:
            return [pod["node"] for pod in pair.status.get("terminatingPods", [])]

        # Its Lease names it sooner than its Node, which stays Ready for longer.
        until(lambda: lost in silent_macs(shown(line, pair)), "`status` names the Mac")
        # The other pod of the old placement may end after the new one serves.
        pair.until(lambda: left() == [lost], "status lists the pod on the Mac that is off; it is not force-deleted")
    finally:
        line.cluster.machines[lost].on()
    until(line.ready_machines, "the Mac is back")
    until(lambda: not silent_macs(shown(line, pair)), "`status` names no Mac")
    pair.until(lambda: not pair.status.get("terminatingPods"), "its old pod has ended")
    assert pair.is_ready()


@pytest.mark.soak
def test_mac_off_and_no_other_fits(line: Line, deploy: Deploy, alone: Alone) -> None:
    # Only the two Studios are allowed.
    held = deploy("held", nodes={"min": 2, "selector": {"thunderfleet.io/chip": "Apple-M3-Ultra"}}).until_ready()
    lost = held.ranks()[1]["node"]
    line.cluster.machines[lost].off()
    try:
        # Rank 0 may report first that the group has failed.
        held.until_condition("Ready", "False", says=lost)
    finally:
        line.cluster.machines[lost].on()
    until(line.ready_machines, "the Mac is back")
    held.until_ready()
    assert held.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)


# --- memory after a kill ---

# Wired memory is read as on a real Mac (on other systems a kill strands none), with a short limit for its return.
MEASURED = """#!/bin/sh
exec {python} -P -c 'import sys
from thunderfleet_runner.host import memory, wired_memory
wired_memory.reader, wired_memory.BACK_SECONDS = (lambda: memory.wired_bytes), 3.0
from thunderfleet_runner.cli import main
sys.exit(main())' "$@"
"""


@pytest.fixture
def measured(line: Line) -> Iterator[Callable[[str, int], None]]:
    """Runners that start now measure their Mac's wired memory; ``measured(mac, pages)`` adds ``pages`` to it."""
    folders = {mac: line.cluster.folder.root / "machines" / mac for mac in line.macs}
    before = {mac: (folder / "recorded/vm_stat").read_text() for mac, folder in folders.items()}
    program = MEASURED.format(python=line.cluster.image_folder / "bin/python3")
    for folder in folders.values():
        (folder / "bin/thunderfleet-runner").write_text(program)
        (folder / "bin/thunderfleet-runner").chmod(0o755)

    def wire(mac: str, pages: int) -> None:
        wired = re.sub(r"(?<=Pages wired down:)( +)(\d+)", lambda found: f"{found[1]}{int(found[2]) + pages}", before[mac])
        assert wired != before[mac]
        replace_file(folders[mac] / "recorded/vm_stat", wired, 0o644)

    yield wire
    for mac, folder in folders.items():
        (folder / "bin/thunderfleet-runner").unlink()
        replace_file(folder / "recorded/vm_stat", before[mac], 0o644)


@pytest.mark.soak
def test_a_mac_that_keeps_a_killed_ranks_memory_is_left_until_it_is_rebooted(
    line: Line, deploy: Deploy, alone: Alone, measured: Callable[[str, int], None]
) -> None:
    served = deploy("stranded").until_ready()
    before = served.group()
    lost = next(rank["node"] for rank in before["ranks"] if rank["node"] != "studio-1")

    def quarantined() -> Json:
        conditions = line.json("get", "np", lost).get("status", {}).get("conditions", [])
        return next((found for found in conditions if found["type"] == "Quarantined"), {})

    # 40 GiB of 16 KiB each.
    measured(lost, 40 << 16)
    kill(line, lost, f"{RANK}.*{served.name}")
    served.until(lambda: served.group().get("epoch") != before["epoch"] and served.is_ready(), "it serves on another pair")
    assert {rank["node"] for rank in served.ranks()} == {"studio-1", *({"studio-2", "mini-1"} - {lost})}
    assert served.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)
    failure = served.group()["lastFailure"]
    assert (failure["class"], failure["reason"], failure["node"]) == ("Reboot", "MemoryStranded", lost)
    found = quarantined()
    assert (found["status"], found["reason"]) == ("True", "MemoryStranded"), found
    assert "40.0 GiB" in found["message"] and f"reboot {lost}" in found["message"], found["message"]
    line.cluster.machines[lost].off()
    line.cluster.machines[lost].on()
    until(lambda: quarantined().get("status") == "False", "the Mac is well again", describe=lambda: str(quarantined()))
    until(line.ready_machines, "the Mac is back")
    assert served.is_ready() or served.until_ready()


# --- strangers ---

# Asks a control port for the state of its group, with no certificate or with a stranger's own; prints the result.
KNOCK = """
import socket, ssl, sys
host, port, certificate = sys.argv[1], int(sys.argv[2]), sys.argv[3]
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
if certificate:
    context.load_cert_chain(certificate)
try:
    with socket.create_connection((host, port), timeout=10) as plain, context.wrap_socket(plain) as secure:
        secure.settimeout(10)
        path = sys.argv[4]
        secure.sendall(f"GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n".encode())
        answer = secure.recv(100)
        print("answered" if answer else "refused: closed without a word", answer)
except ssl.SSLError as error:
    print("refused", error.reason)
except ConnectionError as error:
    print("refused", type(error).__name__)
"""


def test_stranger_at_the_rendezvous(pair: Deployment, line: Line, tmp_path: Any, certificate: Any) -> None:
    pair.until_condition("Verified", "True")
    group = pair.group()
    host, port = group["coordinator"].rsplit(":", 1)
    for given in ("", str(certificate)):
        for path in ("/v1/state", "/v1/join"):
            knocked = line.run("mini-1", sys.executable, "-S", "-c", KNOCK, host, port, given, path)
            assert knocked.stdout.startswith("refused"), knocked.stdout + knocked.stderr
    plain = line.run("mini-1", "bash", "-c", f"exec 3<>/dev/tcp/{host}/{port}; echo GET / >&3; timeout 10 head -c 100 <&3")
    assert "HTTP" not in plain.stdout
    assert pair.is_ready()
    assert disturbed(pair.group()) == disturbed(group)


def kubelet_answer(line: Line, path: str, token: str | None = None) -> int:
    """HTTP status of a kubelet's own server, asked without the API server in between."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({"https": line.cluster.proxy}), urllib.request.HTTPSHandler(context=context)
    )
    url = f"https://{line.cluster.machines['studio-1'].address}:10250{path}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with opener.open(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_stranger_at_a_kubelet(pair: Deployment, line: Line) -> None:
    pod = next(rank["pod"] for rank in pair.ranks() if rank["node"] == "studio-1")
    logs = f"/containerLogs/{pair.namespace}/{pod}/runner"
    powerless = pair.kubectl("create", "token", "default").strip()
    for path in (logs, "/metrics/resource", "/metrics"):
        assert kubelet_answer(line, path) == 401
        assert kubelet_answer(line, path, "not-a-token") == 401
        assert kubelet_answer(line, path, powerless) == 403
    pair.kubectl("create", "serviceaccount", "reader")
    line.kubectl(
        "create",
        "clusterrolebinding",
        pair.name,
        "--clusterrole=system:kubelet-api-admin",
        f"--serviceaccount={pair.namespace}:reader",
    )
    try:
        powerful = pair.kubectl("create", "token", "reader").strip()
        until(lambda: kubelet_answer(line, logs, powerful) == 200, "the new binding is in force")
    finally:
        line.kubectl("delete", "clusterrolebinding", pair.name)


# --- the end ---


def in_pending(line: Line, deploy: Deploy) -> Any:
    waits = deploy("pending", nodes={"min": 9})
    waits.until_condition("Placed", "False")
    assert waits.state == "Pending"
    return waits


def in_starting(line: Line, deploy: Deploy) -> Any:
    starts = deploy("starting")
    starts.until(lambda: len(containers_or_none(starts)) == 2, "its pods are there")
    return starts


def containers_or_none(served: Deployment) -> list[Json]:
    return [child for child in served.children() if child["kind"] == "Pod"]


# Run on a machine: stops the process that waits to be a deployment's rank, when MLX is imported and it has nothing to do.
STOP_WAITING = """
import os, signal, sys, time
def state(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return fields[0], fields[11], fields[12]
def waits(pid):
    words = open(f"/proc/{pid}/cmdline").read()
    if sys.argv[1] not in words or sys.argv[2] not in words or "libmlx" not in open(f"/proc/{pid}/maps").read():
        return False
    before = state(pid)
    time.sleep(0.3)
    return before[0] == "S" and state(pid) == before
limit = time.monotonic() + 60
while time.monotonic() < limit:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(pid) != os.getpid() and waits(pid):
                os.kill(int(pid), signal.SIGSTOP)
                sys.exit(0)
        except OSError:
            pass
    time.sleep(0.05)
sys.exit(1)
"""


def in_forming(line: Line, deploy: Deploy) -> Any:
    # A rank that is stopped before its peer has come holds the other in MLX's init, where no signal reaches it.
    machines = line.cluster.machines
    for mac in line.macs:
        machines[mac].freeze_kubelet()
    try:
        forms = deploy("forming")
        forms.until(lambda: len(forms.ranks()) == 2, "its ranks are placed")
        second = forms.ranks()[1]["node"]
        machines[second].thaw_kubelet()
        assert line.run(second, sys.executable, "-S", "-c", STOP_WAITING, RANK, forms.name, seconds=90).returncode == 0
    finally:
        for mac in line.macs:
            machines[mac].thaw_kubelet()
    forms.until(lambda: forms.state == "Forming", "Forming")
    return forms


def states(seen: list[Json]) -> list[str]:
    """The states in which a watch has seen the groups of a deployment."""
    return [group["state"] for item in list(seen) for group in item.get("status", {}).get("groups", [])]


def in_loading(line: Line, deploy: Deploy) -> Any:
    loads = deploy("loading")
    # So small a model is loaded at once.
    with line.api.watched(loads.path) as seen:
        loads.until(lambda: "Loading" in states(seen), "Loading")
    return loads


def in_ready(line: Line, deploy: Deploy) -> Any:
    return deploy("ready").until_ready()


def in_backing_off(line: Line, deploy: Deploy) -> Any:
    fails = deploy("failing", recovery={"backoffSeconds": 3600, "backoffLimitSeconds": 3600})
    fails.until_ready()
    fails.kubectl("delete", "pod", fails.ranks()[1]["pod"], "--wait=false")
    fails.until(lambda: fails.state == "BackingOff", "BackingOff")
    assert fails.until_condition("Degraded", "True")["message"]
    return fails


STATES = (in_pending, in_starting, in_forming, in_loading, in_ready, in_backing_off)


@pytest.mark.parametrize("state", quick([in_pending, in_forming, in_ready, in_backing_off], STATES))
def test_deleted_in_any_state_leaves_nothing(line: Line, deploy: Deploy, state: Callable[[Any, Deploy], Any]) -> None:
    doomed = state(line, deploy)
    ports = doomed.ports()
    if state in (in_ready, in_loading):
        assert doomed.seen()[0], "its processes can be seen"
        assert doomed.seen()[1] & ports, "and its ports"
    doomed.kubectl("delete", "md", doomed.name, "--wait=false")

    def gone() -> bool:
        return not doomed.left(ports) and not line.items("md", "-n", doomed.namespace)

    until(gone, "nothing of it is left", GONE_SECONDS, describe=lambda: "\n".join(doomed.left(ports)))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A stranger's own certificate and key, for the name that groups use."""
    from datetime import UTC, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.x509.oid import NameOID

    key, name = Ed25519PrivateKey.generate(), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "group.thunderfleet.io")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("group.thunderfleet.io")]), critical=False)
        .sign(key, None)
    )
    file = tmp_path_factory.mktemp("stranger") / "stranger.pem"
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    file.chmod(0o644)
    file.parent.chmod(0o755)
    return file

"""Logs, exec, attach, port-forward and figures, through kubectl and through the kubelet's own server."""

import contextlib
import http.client
import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.kubelets import FORWARD_PORT, MAC, Fleet, alive_with, first, use_terminal
from tests.support.waiting import until


def test_logs(fleet: Fleet) -> None:
    fleet.running("talks")
    until(lambda: fleet.log("talks").count("\n") > 12, "a few lines")
    assert fleet.log("talks").splitlines()[0] in ("line 0", "warn 0")
    assert len(fleet.log("talks", "--tail=3").splitlines()) == 3
    assert len(fleet.log("talks", "--limit-bytes=10")) == 10
    stamped = fleet.log("talks", "--timestamps", "--tail=4").splitlines()
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (line|warn) \d+", line) for line in stamped)
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    late = until(lambda: fleet.log("talks", f"--since-time={since}"), "newer lines")
    assert not re.search(r"^line 0$", late, re.MULTILINE)
    assert fleet.log("talks", "--since=1h").startswith(("line 0\n", "warn 0\n"))
    refused = fleet.kubectl("logs", "talks", "--previous", check=False)
    assert refused.returncode == 1
    assert "previous terminated container main in pod talks not found" in refused.stderr


def following(fleet: Fleet, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(fleet.cluster.tool("kubectl")), "logs", "-f", "--tail=1", name],
        env=fleet.cluster.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_followed_log_brings_what_is_written_meanwhile(fleet: Fleet) -> None:
    fleet.running("stays")
    until(lambda: "tick" in fleet.log("stays"), "it ticks")
    with following(fleet, "stays") as follower:
        assert follower.stdout is not None
        numbers = [int(follower.stdout.readline().removeprefix("tick ")) for _ in range(6)]
        follower.kill()
    assert numbers == list(range(numbers[0], numbers[0] + 6))


def test_exec(fleet: Fleet) -> None:
    fleet.running("talks")
    assert fleet.exec("talks", "cat", text="in and out\n" * 20_000) == "in and out\n" * 20_000
    done = fleet.kubectl("exec", "talks", "--", "sh", "-c", "echo out; echo err >&2; exit 7", check=False)
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "err\n" in done.stderr
    missing = fleet.kubectl("exec", "talks", "--", "no-such-command", check=False)
    assert missing.returncode != 0
    assert "command 'no-such-command' not found on PATH=" in missing.stderr
    nowhere = fleet.kubectl("exec", "talks", "-c", "none", "--", "true", check=False)
    assert nowhere.returncode != 0


def test_attach_with_input_and_with_a_terminal(fleet: Fleet) -> None:
    fleet.running("listens")
    # kubectl says on standard error how to see a prompt.
    said = fleet.kubectl("attach", "-i", "listens", text="one\ntwo\n").stdout
    assert said.endswith("heard one. heard two. \nover\n")
    fleet.await_pod("listens", lambda item: item["status"]["phase"] == "Succeeded", "its input has ended")
    fleet.running("shell")
    refused = fleet.kubectl("attach", "-i", "talks", text="x", check=False)
    assert "has no input; set stdin: true in its spec" in refused.stderr
    words = [str(fleet.cluster.tool("kubectl")), "attach", "-it", "shell"]
    environment = fleet.cluster.environment()
    use_terminal(
        lambda inner: subprocess.Popen(
            words, env=environment, stdin=inner, stdout=inner, stderr=inner, text=True, start_new_session=True
        )
    )
    ended = fleet.await_pod("shell", lambda item: item["status"]["phase"] == "Failed", "its shell has ended")
    assert first(ended)["state"]["terminated"]["exitCode"] == 4


def test_port_forward_reaches_the_pods_own_ports_only(fleet: Fleet) -> None:
    uid = fleet.running("serves")["metadata"]["uid"]
    until(lambda: "listens" in fleet.log("serves"), "the pod listens")
    with forwarding(fleet, "serves", FORWARD_PORT) as local:
        for _ in range(2):
            with urllib.request.urlopen(f"http://127.0.0.1:{local}/", timeout=20) as answer:
                assert answer.read() == b"from the pod"
        assert alive_with(uid)
    # etcd's, the kubelet's: any program of the machine may listen there.
    with forwarding(fleet, "talks", FORWARD_PORT) as local:
        with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
            urllib.request.urlopen(f"http://127.0.0.1:{local}/", timeout=20)
        why = "a process outside this pod listens there"
        refused = f"pod default/talks does not listen on TCP port {FORWARD_PORT} of node {MAC}: {why}"
        until(lambda: refused in (fleet.scratch / "forward.err").read_text(), "kubectl shows the reason")


def test_figures_of_pods_under_the_names_of_kubernetes(fleet: Fleet) -> None:
    fleet.running("talks")

    def read(path: str) -> str:
        return fleet.kubectl("get", "--raw", f"/api/v1/nodes/{MAC}/proxy/{path}").stdout

    def figures(path: str, pod: str) -> dict[str, float]:
        families = text_string_to_metric_families(read(path))
        return {one.name: one.value for family in families for one in family.samples if one.labels.get("pod") == pod}

    found = figures("metrics/cadvisor", "talks")
    assert found["container_memory_rss"] == found["container_memory_working_set_bytes"] > 0
    assert "container_cpu_usage_seconds_total" in found
    until(lambda: figures("metrics/probes", "probed").get("prober_probe_total"), "a probe has a result")
    summary = json.loads(read("stats/summary"))
    assert summary["node"]["fs"]["capacityBytes"] > summary["node"]["fs"]["availableBytes"] > 0
    assert "talks" in [one["podRef"]["name"] for one in summary["pods"]]


def test_what_metrics_server_reads_is_there_for_every_running_container(fleet: Fleet) -> None:
    """The names and rules of metrics-server, which skips a container if one of its three figures is missing or 0."""
    fleet.running("talks")
    path = f"/api/v1/nodes/{MAC}/proxy"

    def running() -> set[tuple[str, str]]:
        pods = [one for one in fleet.get("pods")["items"] if one["spec"].get("nodeName") == MAC]
        statuses = [(pod["metadata"]["name"], one) for pod in pods for one in pod["status"].get("containerStatuses") or ()]
        return {(pod, one["name"]) for pod, one in statuses if "running" in one["state"]}

    missing: set[tuple[str, str]] = set()

    def complete() -> bool:
        before, text = running(), fleet.kubectl("get", "--raw", f"{path}/metrics/resource").stdout
        summary = json.loads(fleet.kubectl("get", "--raw", f"{path}/stats/summary").stdout)
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        names = ("container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_start_time_seconds")
        figures = [
            {(one.labels["pod"], one.labels["container"]) for one in samples if one.name == name and one.value > 0}
            for name in names
        ]
        nodes = {one.name: one.value for one in samples if one.name.startswith("node_")}
        assert nodes["node_cpu_usage_seconds_total"] > 0 and nodes["node_memory_working_set_bytes"] > 0
        counted = {
            (pod["podRef"]["name"], one["name"])
            for pod in summary["pods"]
            for one in pod["containers"]
            if one["memory"]["workingSetBytes"] > 0 and one["cpu"]["usageCoreNanoSeconds"] > 0
        }
        # Containers that have ended since then are in neither.
        stayed = before & running()
        missing.clear()
        missing.update(*(stayed - found for found in (*figures, counted)))
        return len(stayed) > 3 and not missing

    until(complete, "each running container has all figures", describe=lambda: str(missing))


def test_debug_says_why_it_cannot(fleet: Fleet) -> None:
    fleet.running("talks")
    done = fleet.kubectl("debug", "talks", "--image=busybox", "-c", "debugger", "-i", check=False)
    assert "this node does not run ephemeral containers" in done.stderr + done.stdout
    assert first(fleet.pod("talks"))["ready"]


@contextlib.contextmanager
def forwarding(fleet: Fleet, pod: str, port: int) -> Iterator[int]:
    """The local port of a running ``kubectl port-forward``."""
    errors = fleet.scratch / "forward.err"
    words = [str(fleet.cluster.tool("kubectl")), "port-forward", f"pod/{pod}", f":{port}", "--address", "127.0.0.1"]
    environment = fleet.cluster.environment()
    with (
        errors.open("w") as file,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=file, text=True, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("Forwarding from 127.0.0.1:"), (line, errors.read_text())
            yield int(line.split(" -> ")[0].rpartition(":")[2])
        finally:
            process.terminate()


def test_exec_ends_with_its_command_though_a_child_holds_its_output(fleet: Fleet) -> None:
    fleet.running("talks")
    # The child would hold the streams for an hour.
    assert fleet.exec("talks", "sh", "-c", "(setsid sleep 3600 &); echo done") == "done\n"


def test_strangers_are_refused(fleet: Fleet) -> None:
    fleet.running("talks")
    log, run = "/containerLogs/default/talks/main", "/exec/default/talks/main?command=id&output=1"
    for path in (log, run, "/pods", "/metrics", "/metrics/resource", "/healthz", "/nothing", "/portForward/default/talks"):
        assert fleet.ask_kubelet(path)[0] == 401, path
        assert fleet.ask_kubelet(path, "nonsense")[0] == 401, path
    token = fleet.kubectl("create", "token", "stranger").stdout.strip()
    for path in (log, run, "/pods", "/metrics", "/healthz"):
        code, said = fleet.ask_kubelet(path, token)
        assert code == 403, path
        assert "system:serviceaccount:default:stranger cannot" in said
    as_stranger = ("--as=system:serviceaccount:default:stranger",)
    for words in (("logs", "talks"), ("exec", "talks", "--", "id")):
        done = fleet.kubectl(*as_stranger, *words, check=False)
        assert done.returncode != 0
        assert "orbidden" in done.stderr
    # Permission for metrics covers only metrics, however the path is written.
    fleet.kubectl("create", "clusterrole", "figures", "--verb=get", "--resource=nodes/metrics")
    fleet.kubectl("create", "clusterrolebinding", "figures", "--clusterrole=figures", "--serviceaccount=default:stranger")
    until(lambda: fleet.ask_kubelet("/metrics/resource", token)[0] == 200, "figures may be read")
    for path in (log, run, "/pods", "/metrics/..%2fpods", "/metrics/../pods", f"/metrics/..{run}", f"/metrics%2f..{run}"):
        assert fleet.ask_kubelet(path, token)[0] in (403, 404), path

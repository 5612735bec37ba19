"""The steps of the demo. They run the commands that a user would type: kubectl, helm, a request to the endpoint."""

import json
import select
import subprocess
import sys
import sysconfig
import time
import urllib.request
from typing import Any

from thunderfleet_controlplane.assets import ETCDUTL
from thunderfleet_lib.host.hostcmd import BlockingHost, Failure
from thunderfleet_view.follow import is_ready

from thunderfleet_localcluster.client.addresses import offer_addresses
from thunderfleet_localcluster.client.control import remove, running
from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.demo import hub
from thunderfleet_localcluster.demo.installation import (
    NAMESPACE,
    init_and_join,
    install_chart,
    start_macs,
    start_with_own_control_plane,
    why_no_daemons,
)
from thunderfleet_localcluster.demo.session import (
    COMMAND_SECONDS,
    DEPLOYMENT,
    NAME,
    POLL_SECONDS,
    READY_SECONDS,
    STEPS,
    Session,
    say,
)
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.programs import find_programs
from thunderfleet_localcluster.progress import Progress
from thunderfleet_localcluster.shipped import shipped

PS_SECONDS = 10
PAGE_SECONDS = 30.0

Json = dict[str, Any]


def play(session: Session, keep: bool) -> None:
    """All steps. Raises LocalClusterError at the first failure."""
    offer_addresses(None)
    reason = why_no_daemons()
    with session.step("The control plane's programs (built once, then cached)"):
        with Progress(sys.stdout) as progress:
            folder = find_programs(progress.event)
            if not reason:
                find_programs(progress.event, ETCDUTL)
        say(f"      {folder}")
    if reason:
        say(f"      recorded Macs cannot run LaunchDaemons here ({reason}), so the local cluster runs the control plane")
        with session.step("A control plane; three recorded Macs and two Linux nodes join it with bootstrap tokens"):
            start_with_own_control_plane(session)
        with session.step("Install the chart"):
            install_chart(session)
    else:
        with session.step("Three recorded Macs, without Thunderfleet"):
            start_macs(session)
        with session.step("Make one a control plane, and the others its nodes: LaunchDaemons on each"):
            init_and_join(session)
    with session.step("What the agents discovered: Macs and Thunderbolt links"):
        wait_for_discovery(session)
        session.show("get", "nodes,np,tbl")
    with session.step(
        "Deploy a model that is on no Mac: one fetches it, the other copies it over a cable"
        if hub.is_needed(session)
        else "Deploy a model on two Macs"
    ):
        deploy(session)
    with session.step("Ask questions; each answer must equal that of one mlx-lm process, token by token"):
        ask(session)
    with session.step("Observe: status, logs, benchmark, metrics"):
        observe(session)
    with session.step("Kill a rank with SIGKILL; the group recovers automatically"):
        kill_rank(session)
        session.until_ready(lambda found: not is_ready(found), "reported as failed")
        session.until_ready(is_ready, "Ready again")
        session.check(session.model.questions[2], "after the failure")
    if keep:
        show_how_to_go_on(session)
        return
    with session.step("Remove everything"):
        session.down()
        if running(session.folder) or (left := leftovers(session.folder)):
            raise LocalClusterError("still there: " + ", ".join(left or ["the supervisor"]))
        remove(session.folder)
        say("      no process, port, namespace or mount is left")


def deploy(session: Session) -> None:
    """Apply the example and wait until it is Ready."""
    example = shipped("examples/tiny.yaml")
    for line in example.read_text().splitlines():
        say(f"      | {line}")
    session.show("apply", "-f", str(example))
    show_group(session.until_ready(is_ready, "Ready"))
    if hub.is_needed(session):
        session.show("get", "mc")
        hub.show(session, session.json("get", "mc", DEPLOYMENT))


def show_group(deployment: Json) -> None:
    """The parallelism of the group, and the transport between its ranks."""
    group = deployment["status"]["groups"][0]
    nodes = " and ".join(rank["node"] for rank in group["ranks"])
    say(f"      Ready on {nodes}: parallelism {group['parallelism']}, transport {group['transport']}")


def ask(session: Session) -> None:
    """Send questions, change the parallelism, and send them again."""
    first = session.deployment()["status"]["groups"][0]["parallelism"]
    session.check(session.model.questions[0], first)
    other = "Tensor" if first == "Pipeline" else "Pipeline"
    session.show("patch", "md", DEPLOYMENT, "--type=merge", "-p", json.dumps({"spec": {"parallelism": other}}))
    show_group(session.until_ready(lambda found: is_ready(found, other), f"Ready as {other}"))
    session.check(session.model.questions[1], other)


def observe(session: Session) -> None:
    """Show status, logs, benchmark and metrics."""
    session.until_ready(lambda found: bool(found["status"].get("tokensPerSecond")), "benchmarked")
    session.show("get", "md")
    session.show("logs", rank_zero(session)["pod"], "--tail=6")
    benchmark = session.deployment()["status"]["benchmark"]
    say("      status.benchmark: " + ", ".join(f"{key} {value}" for key, value in benchmark.items()))
    show_metrics(session)


def show_how_to_go_on(session: Session) -> None:
    """Commands for a cluster that is left running."""
    cluster = session.cluster
    session.number += 1
    say(f"\n[{session.number}/{STEPS}] The cluster is still running. To use it:")
    # Folders of `thunderfleet`, its kubectl plugin and kubectl, so that commands of the documentation work unchanged.
    folders = f"{sysconfig.get_path('scripts')}:{cluster.tool('kubectl').parent}"
    say(f"      export KUBECONFIG={cluster.kubeconfig} PATH={folders}:$PATH")
    say(f"      export http_proxy={cluster.proxy}    # lets this shell reach status.endpoint")
    say("      kubectl get md,np,tbl,pods")
    address = serve_page(session)
    if address:
        say(f"      {address}    # a live page of this cluster: open it within 10 minutes, once")
    say("      thunderfleet ui    # another page")
    say(f"      thunderfleet local status --name {NAME}    # processes, addresses, logs")
    say(f"      thunderfleet local down --name {NAME}      # stop it")


def serve_page(session: Session) -> str:
    """Starts the live page, which ends with the cluster. Returns its address; "" if it did not start."""
    command = [sys.executable, "-m", "thunderfleet_cli", "ui", "--kubeconfig", str(session.cluster.kubeconfig)]
    process = subprocess.Popen(
        [*command, "--while-running", str(session.folder.root)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as output:
        if select.select([output], [], [], PAGE_SECONDS)[0] and (line := output.readline(200)).endswith(b"\n"):
            return line.decode().strip()
    process.terminate()
    return ""


def leftovers(folder: ClusterFolder) -> list[str]:
    """Processes whose command line contains the cluster's folder."""
    found = BlockingHost().run(["ps", "-A", "-ww", "-o", "pid=,args="], PS_SECONDS)
    if isinstance(found, Failure):
        raise LocalClusterError(str(found))
    return [line.strip() for line in found.text.splitlines() if str(folder.root) in line]


def wait_for_discovery(session: Session) -> None:
    """Wait until every cable is a ThunderboltLink with both ends, and every Mac can fetch the model or has its sizes."""
    limit = time.monotonic() + READY_SECONDS
    cables = sum(len(machine.cables) for machine in session.cluster.machines.values()) // 2
    macs = [n["metadata"]["name"] for n in session.json("get", "nodes", "-l", "kubernetes.io/os=darwin")["items"]]
    while True:
        profiles = {p["metadata"]["name"]: p.get("status", {}) for p in session.json("get", "np")["items"]}
        links = session.json("get", "tbl")["items"]
        missing = [mac for mac in macs if not _knows_models(profiles.get(mac, {}), fetches=hub.is_needed(session))]
        whole = [link for link in links if len(link.get("status", {}).get("endpoints", [])) == 2]
        if not missing and len(whole) == cables:
            return
        if time.monotonic() > limit:
            raise LocalClusterError(
                f"after {READY_SECONDS} s: no model or model store on {missing}; {len(whole)} of {cables} links have both ends"
            )
        time.sleep(POLL_SECONDS)


def _knows_models(profile: Json, *, fetches: bool) -> bool:
    """Whether a Mac has a model store, or the sizes of a model."""
    if fetches:
        return "store" in profile and not profile["store"].get("problem")
    return any(model.get("sizedBy") for model in profile.get("models", []))


def rank_zero(session: Session) -> Json:
    """Rank 0 in the deployment's status."""
    rank: Json = session.deployment()["status"]["groups"][0]["ranks"][0]
    return rank


def kill_rank(session: Session) -> None:
    """Send SIGKILL to rank 1 on its Mac."""
    rank: Json = session.deployment()["status"]["groups"][0]["ranks"][1]
    command = ["pkill", "-KILL", "-f", "thunderfleet_runner.rank"]
    say(f"      {rank['node']} $ {' '.join(command)}")
    if session.cluster.machines[rank["node"]].run(command).returncode:
        raise LocalClusterError(f"no rank process on {rank['node']}")


def show_metrics(session: Session) -> None:
    """Show some metrics of the active operator."""
    pods = session.json("get", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator")["items"]
    wanted = ("thunderfleet_operator_reconcile", "thunderfleet_operator_groups", "thunderfleet_operator_queue")
    best: list[str] = []
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": session.cluster.proxy}))
    for pod in pods:
        port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
        url = f"http://{pod['status']['podIP']}:{port}/metrics"
        try:
            with opener.open(url, timeout=COMMAND_SECONDS) as response:
                text = response.read().decode()
        except OSError as error:
            raise LocalClusterError(f"{url}: {error}") from error
        lines = [
            line for line in text.splitlines() if line.startswith(wanted) and "_bucket" not in line and "_created" not in line
        ]
        best = max(best, lines, key=len)
    for line in best[:8]:
        say(f"      {line}")

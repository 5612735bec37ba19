"""The cluster of the demo: `thunderfleet init` and `join` on recorded Macs, if these can have their own folders.

This needs namespaces and root, like the administrator of a Mac. Elsewhere, the local cluster runs its control plane itself, and
helm installs the chart.
"""

import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

from thunderfleet_localcluster.client.launch import choose_network
from thunderfleet_localcluster.demo import hub
from thunderfleet_localcluster.demo.session import COMMAND_SECONDS, POLL_SECONDS, Session, say
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.file import MACS_AND_HUB, parse_fleet
from thunderfleet_localcluster.shipped import shipped

NAMESPACE = "thunderfleet-system"
INSTALL_SECONDS = 180


def why_no_daemons() -> str:
    """Why recorded Macs cannot run LaunchDaemons here; empty if they can."""
    mode, reason = choose_network("auto")
    if mode != "namespaces":
        return reason
    return "" if os.geteuid() == 0 else "only root can give recorded Macs folders that belong to root"


def start_macs(session: Session) -> None:
    """Start recorded Macs on which nothing is installed and no model is stored."""
    session.up(MACS_AND_HUB, parse_fleet(MACS_AND_HUB, "the fleet").machines[0].name)


def init_and_join(session: Session) -> None:
    """Install everything with the commands of the README. Raises LocalClusterError."""
    first, *others = (name for name, machine in session.cluster.machines.items() if machine.kind == "mac")
    with ThreadPoolExecutor(len(others)) as threads:
        init = _Command(session, threads, first, "init")
        init.follow()
        (line,) = re.findall(r"tf1-[\w-]+", init.log.read_text())
        session.cluster.take_kubeconfig(first)
        joins = [_Command(session, threads, name, "join", "-", text=line) for name in others]
        _use_hub(session)
        for join in joins:
            join.follow()
    session.kubectl("rollout", "status", "deployment,daemonset", "-n", NAMESPACE, f"--timeout={COMMAND_SECONDS}s")
    session.show("get", "pods", "-n", NAMESPACE, "-o", "wide")


def _use_hub(session: Session) -> None:
    """Make Macs fetch models from a machine of the cluster's network instead of the internet."""
    session.model_folder = hub.model_folder(session)
    endpoint = f"hub.endpoint={hub.start(session)}"
    say(f"      $ helm upgrade thunderfleet charts/thunderfleet --reset-then-reuse-values --set {endpoint} …")
    session.cluster.helm(
        *("upgrade", "thunderfleet", str(shipped("charts/thunderfleet")), "--namespace", NAMESPACE),
        *("--reset-then-reuse-values", "--set", endpoint),
        seconds=COMMAND_SECONDS,
    )


class _Command:
    """A command of `thunderfleet` that runs on a recorded Mac, and writes to a log."""

    def __init__(self, session: Session, threads: ThreadPoolExecutor, mac: str, *words: str, text: str = "") -> None:
        machine = session.cluster.machines[mac]
        self.mac, self.title = mac, f"{'echo tf1-… | ' if text else ''}sudo thunderfleet {' '.join(words)}"
        self.log: Path = session.folder.log(f"{words[0]}-{mac}")
        self.log.write_text("")
        program = str(session.cluster.image_folder / "bin" / "thunderfleet")
        command = [program, *words, "--config", str(machine.folder / "kubelet.yaml")]
        # The log is below the folder of the cluster, which every recorded Mac can read.
        script = ["sh", "-c", 'log=$1; shift; exec "$@" > "$log" 2>&1', "sh", str(self.log), *command]
        self._ended: Future[CompletedProcess[str]] = threads.submit(machine.run, script, text, INSTALL_SECONDS)

    def follow(self) -> None:
        """Show the steps until the command has ended. Raises LocalClusterError if it fails."""
        say(f"      {self.mac} $ {self.title}")
        shown = 0
        while not self._ended.done():
            shown = self._show_from(shown)
            time.sleep(POLL_SECONDS)
        self._show_from(shown)
        if self._ended.result().returncode:
            raise LocalClusterError(f"{self.title} failed on {self.mac}:\n{self.log.read_text().strip()}")

    def _show_from(self, shown: int) -> int:
        lines: Sequence[str] = self.log.read_text().splitlines(keepends=True)
        for line in lines[shown:]:
            if not line.endswith("\n"):
                break
            shown += 1
            if line.startswith("["):
                say(f"      {line.rstrip()}")
        return shown


def start_with_own_control_plane(session: Session) -> None:
    """Start the default fleet; the local cluster runs the control plane."""
    session.up()
    session.model_folder = session.cluster.models / session.model.repository
    if hub.is_needed(session):
        session.model_folder = hub.model_folder(session)
    else:
        session.model.install(session.model_folder)
        say("      without network namespaces the recorded Macs share a disk, so all of them have the model from the start")


def install_chart(session: Session) -> None:
    """Install the chart into its namespace."""
    # Without namespaces, all Macs would share one folder of this machine as their model store.
    weights = f"hub.endpoint={hub.start(session)}" if hub.is_needed(session) else "agent.modelStore="
    session.kubectl("create", "namespace", NAMESPACE)
    session.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=privileged")
    say(f"      $ helm install thunderfleet charts/thunderfleet --namespace {NAMESPACE} --wait …")
    session.cluster.helm(
        *("install", "thunderfleet", str(shipped("charts/thunderfleet")), "--namespace", NAMESPACE, "--wait"),
        *("--set", f"agent.modelFolders={{{session.cluster.models}}}", "--set", weights, "--timeout", f"{INSTALL_SECONDS}s"),
        seconds=INSTALL_SECONDS + 30,
    )
    session.show("get", "pods", "-n", NAMESPACE, "-o", "wide")

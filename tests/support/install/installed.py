"""A recorded Mac on which `thunderfleet` installs, as its administrator uses it."""

import json
import re

from thunderfleet_localcluster.client.cluster import Cluster, ClusterMachine
from thunderfleet_localcluster.machines.own_root import OWN

SECONDS = 300
DAEMONS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "approver", "balancer", "kubelet")
# Prints the program of every LaunchDaemon.
PROGRAMS = """
import glob, plistlib
for path in glob.glob("/Library/LaunchDaemons/io.thunderfleet.*.plist"):
    with open(path, "rb") as file:
        print(plistlib.load(file)["ProgramArguments"][0])
"""
# Prints what is in folders, as JSON: by path, type and mode, owner, and a hash of the content.
FILES = """
import hashlib, json, os, sys
found = {}
def add(path):
    about = os.lstat(path)
    data = os.readlink(path).encode() if os.path.islink(path) else b""
    if os.path.isfile(path) and not os.path.islink(path):
        with open(path, "rb") as file:
            data = file.read()
    found[path] = f"{about.st_mode:o} {about.st_uid} {about.st_gid} {hashlib.sha256(data).hexdigest()[:16]}"
for top in sys.argv[2:]:
    add(top)
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if os.path.join(folder, name) != sys.argv[1]]
        for name in folders + files:
            add(os.path.join(folder, name))
print(json.dumps(found))
"""
# Ends a command as soon as it reports a step.
KILLER = """
import subprocess, sys
command = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, text=True)
reached = False
for line in command.stdout:
    if not reached and line.startswith(sys.argv[1]):
        reached = True
        command.kill()
print("killed" if reached and command.wait() == -9 else "not reached")
"""


class Mac:
    """A recorded Mac, as its administrator uses it."""

    def __init__(self, cluster: Cluster, machine: ClusterMachine, program: str = "") -> None:
        """``program``: the command `thunderfleet`; that of the cluster's image unless it is given."""
        self.machine = machine
        self._cluster = str(cluster.folder.root)
        self.program = program or str(cluster.image_folder / "bin" / "thunderfleet")
        self.python = str(cluster.image_folder / "bin" / "python3")
        self.config = str(machine.folder / "kubelet.yaml")

    def run(self, *argv: str, code: int = 0, text: str = "") -> str:
        done = self.machine.run(argv, text, seconds=SECONDS)
        assert done.returncode == code, f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def init(self, *options: str) -> str:
        return self.run(self.program, "init", "--config", self.config, *options)

    def killed_at(self, step: str, *command: str, program: str = "") -> None:
        """Kills a command of `thunderfleet` as soon as it reports a step."""
        assert self.run(self.python, "-c", KILLER, step, program or self.program, *command).strip() == "killed", step

    def network(self) -> list[str]:
        """The network services and the interfaces, in an order that does not depend on that of the bridge's members."""
        shown = self.run("networksetup", "-listnetworkserviceorder") + self.run("ifconfig", "-a")
        return sorted(line.strip() for line in shown.splitlines())

    def members(self) -> list[str]:
        """The members of the Thunderbolt Bridge."""
        return re.findall(r"member: (\w+) ", self.run("ifconfig", "bridge0"))

    def has_separate_ports(self) -> bool:
        """Whether no port is in the bridge, its service is off, and each port has a service of its own."""
        services = self.run("networksetup", "-listallnetworkservices").splitlines()
        own = {f"Thunderfleet Thunderbolt {number}" for number in range(1, 7)}
        return self.members() == [] and own | {"*Thunderbolt Bridge"} <= set(services)

    def manual(self, port: int) -> str:
        """The settings of the network service of a port; empty if it has no fixed address."""
        info = self.run("networksetup", "-getinfo", f"Thunderfleet Thunderbolt {port}")
        return info if info.startswith("Manual Configuration") else ""

    def kubectl(self, *arguments: str, code: int = 0, text: str = "") -> str:
        (program,) = self.run("sh", "-c", "echo /opt/thunderfleet/control-plane-*/kubectl | cut -d' ' -f1").split()
        admin = "/var/lib/thunderfleet/admin.kubeconfig"
        return self.run(program, "--kubeconfig", admin, *arguments, code=code, text=text)

    def field(self, path: str, *what: str) -> str:
        """A field of an object."""
        return self.kubectl("get", *what, "-o", f"jsonpath={{{path}}}")

    def helm(self, *arguments: str) -> str:
        (program,) = self.run("sh", "-c", "echo /opt/thunderfleet/control-plane-*/helm").split()
        options = ("--kubeconfig", "/var/lib/thunderfleet/admin.kubeconfig", "--namespace", "thunderfleet-system")
        return self.machine.run([program, *arguments, *options], seconds=SECONDS).stdout

    def answers(self) -> bool:
        command = (
            "/opt/thunderfleet/control-plane-*/kubectl --kubeconfig /var/lib/thunderfleet/admin.kubeconfig get --raw /readyz"
        )
        return self.machine.run(["sh", "-c", command], seconds=SECONDS).returncode == 0

    def node_ready(self, name: str) -> bool:
        template = '{range .status.conditions[?(@.type=="Ready")]}{.status}{end}'
        return self.kubectl("get", "node", name, "-o", f"jsonpath={template}") == "True"

    def destroy(self) -> None:
        """Removes etcd's data, certificates and keys, while everything runs."""
        self.run("rm", "-r", "/var/lib/thunderfleet/control-plane")

    def pids(self, daemons: tuple[str, ...] = DAEMONS) -> dict[str, str]:
        """The process of every daemon. Raises IndexError if one does not run."""
        shown = {name: self.run("launchctl", "print", f"system/io.thunderfleet.{name}") for name in daemons}
        return {name: re.findall(r"^\tpid = (\d+)$", text, re.MULTILINE)[0] for name, text in shown.items()}

    def files(self) -> dict[str, str]:
        """Everything in the folders that are this Mac's own, without the folder of the cluster: type, mode, owner, content."""
        found: dict[str, str] = json.loads(self.run(self.python, "-c", FILES, self._cluster, *OWN))
        # Every Mac has this folder, and a recorded one gets it with the first log.
        found.pop("/Library/Logs", None)
        return found

    def processes_of(self, *modules: str) -> set[str]:
        """Process and command line of everything with one of these words."""
        lines = self.run("ps", "-axww", "-o", "pid=,command=").splitlines()
        return {line.strip() for line in lines if any(module in line for module in modules)}

    def processes(self) -> set[str]:
        """Command lines of all processes but the one that lists them, and the Mac's first."""
        lines = self.run("ps", "-axww", "-o", "pid=,command=").splitlines()
        return {line.split(None, 1)[1] for line in lines if line.split()[0] != "1" and "ps -axww" not in line}

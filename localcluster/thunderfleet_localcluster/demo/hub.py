"""The demo's hub: a machine in the network of the Macs serves the model over HTTP, and no Mac has it.

Without namespaces, all recorded Macs share the disk of this machine and copy nothing: the model is in a folder
that all of them can read.
"""

import shlex
import sys
import time
from pathlib import Path

from thunderfleet_localcluster.client.cluster import ClusterMachine
from thunderfleet_localcluster.demo.session import COMMAND_SECONDS, POLL_SECONDS, Json, Session, say
from thunderfleet_localcluster.errors import LocalClusterError

PORT = 18080
LARGE = "GET /cdn/"
"""A request for a weight file in the hub's log."""


def is_needed(session: Session) -> bool:
    """Whether a hub is needed, because each Mac has its own disk and no Mac has the model."""
    return session.cluster.network == "namespaces"


def start(session: Session) -> str:
    """Serve the model on the first Linux machine; the URL. The server ends with the machine. Raises LocalClusterError."""
    machine, model = _machine(session), session.model
    model.install(model_folder(session))
    log = _log(session)
    log.write_text("")
    command = [sys.executable, "-m", "thunderfleet_localcluster.models.hub", machine.address, str(PORT)]
    served = f"{model.repository}={model_folder(session)}"
    started = machine.run(["sh", "-c", f"{shlex.join([*command, served])} >{shlex.quote(str(log))} 2>&1 &"])
    limit = time.monotonic() + COMMAND_SECONDS
    while "ready" not in log.read_text():
        if started.returncode or time.monotonic() > limit:
            raise LocalClusterError(f"the hub did not start on {machine.name}: {log.read_text().strip() or started.stderr}")
        time.sleep(POLL_SECONDS)
    url = f"http://{machine.address}:{PORT}"
    say(f"      {machine.name} serves {model.repository} at {url}, as the Hugging Face Hub does; no Mac has it")
    return url


def model_folder(session: Session) -> Path:
    """The model in the form that the hub serves."""
    return _machine(session).folder / "hub" / session.model.repository


def show(session: Session, cache: Json) -> None:
    """Print the source of each Mac's files of a ModelCache, and the number of requests for weights to the hub."""
    for mac in cache["status"]["macs"]:
        source = f"from {mac['peer']} over {mac.get('link') or 'the LAN'}" if mac.get("peer") else "from the hub"
        say(f"      {mac['node']}: {mac['bytesDone']} bytes {source}")
    asked = sum(line.startswith(LARGE) for line in _log(session).read_text().splitlines())
    say(f"      the hub got {asked} requests for the weight file: one for its header, one for the file")


def _machine(session: Session) -> ClusterMachine:
    return next(machine for machine in session.cluster.machines.values() if machine.kind == "linux")


def _log(session: Session) -> Path:
    return session.folder.log("hub")

"""Starting the supervisor of a cluster and waiting until the cluster is up."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from thunderfleet_localcluster.client.control import DOWN_SECONDS
from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.file import DEFAULT_FLEET
from thunderfleet_localcluster.fleet.layout import Mode
from thunderfleet_localcluster.fleet.spec import Fleet
from thunderfleet_localcluster.image import IMAGE, make_image
from thunderfleet_localcluster.network.namespaces import can_isolate
from thunderfleet_localcluster.paths import cache_folder
from thunderfleet_localcluster.supervisor.spec import ImageSpec, Spec

Event = dict[str, Any]
Network = Literal["auto", "namespaces", "loopback"]
Supervisor = subprocess.Popen[bytes]


def kubelet_command() -> list[str]:
    """The kubelet's command line: the installed command, else its entry point with this Python."""
    installed = Path(sys.executable).parent / "thunderfleet-kubelet"
    if installed.exists():
        return [str(installed)]
    return [sys.executable, "-c", "import sys; from thunderfleet_kubelet.cli import main; sys.exit(main())"]


def choose_network(network: Network) -> tuple[Mode, str]:
    """The mode to use, and why namespaces are not used. Raises LocalClusterError if they are required but unavailable."""
    if network == "loopback":
        return "loopback", "chosen with --network"
    problem = can_isolate()
    if problem is None:
        return "namespaces", ""
    if network == "namespaces":
        raise LocalClusterError(f"cannot use network namespaces: {problem}; use --network loopback or auto")
    return "loopback", problem


def fleet_text(fleet: Fleet | Path | str | None) -> tuple[str, str]:
    """Text and name of a fleet file, from a Fleet, a text or a path; None is the default fleet. Raises LocalClusterError."""
    if fleet is None:
        return DEFAULT_FLEET, "the default fleet"
    if isinstance(fleet, Fleet):
        return json.dumps(fleet.model_dump(mode="json", by_alias=True, exclude_defaults=True)), "the fleet"
    if isinstance(fleet, str):
        return fleet, "the fleet"
    try:
        return fleet.read_text(encoding="utf-8"), str(fleet)
    except (OSError, UnicodeDecodeError) as error:
        raise LocalClusterError(f"cannot read {fleet}: {error}", usage=True) from error


def image_spec(tell: Callable[[Event], None]) -> ImageSpec:
    """The image with Thunderfleet's programs, built if necessary. Raises LocalClusterError."""
    title = f"image {IMAGE}"
    began = time.monotonic()
    tell({"step": title, "state": "start"})
    image = make_image(cache_folder() / "images")
    tell({"step": title, "state": "done", "seconds": time.monotonic() - began})
    return ImageSpec(IMAGE, str(image.folder), str(image.lock))


def start_supervisor(folder: ClusterFolder, spec: Spec) -> Supervisor:
    """Write the spec into the cluster's folder and start a supervisor for it. Raises LocalClusterError."""
    try:
        folder.root.mkdir(parents=True, exist_ok=True)
        folder.root.chmod(0o755)
        folder.logs.mkdir(exist_ok=True)
    except OSError as error:
        raise LocalClusterError(f"cannot create the cluster's folder {folder.root}: {error.strerror}", usage=True) from error
    folder.spec.write_text(spec.to_json())
    with folder.log("supervisor").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "thunderfleet_localcluster.supervisor", str(folder.spec), "--folder", str(folder.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def wait_until_up(
    supervisor: Supervisor, folder: ClusterFolder, tell: Callable[[Event], None], deadline: float
) -> dict[str, Any]:
    """Pass on progress until the cluster is up; returns its state. ``deadline``: of the monotonic clock."""
    assert supervisor.stdout is not None
    buffer = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([supervisor.stdout], [], [], left)[0]:
            raise LocalClusterError(f"the cluster did not start in time; see {folder.logs}")
        chunk = os.read(supervisor.stdout.fileno(), 65536)
        if not chunk:
            raise LocalClusterError(
                f"the process of the cluster ended before the cluster was up; see {folder.log('supervisor')}"
            )
        *lines, buffer = (buffer + chunk).split(b"\n")
        if (state := _read_events(lines, tell)) is not None:
            return state


def _read_events(lines: Sequence[bytes], tell: Callable[[Event], None]) -> dict[str, Any] | None:
    """Pass on events; the cluster's state if it is up. Raises LocalClusterError if the start failed."""
    for line in lines:
        event: Event = json.loads(line)
        if event.get("state") == "ready":
            state: dict[str, Any] = event["cluster"]
            return state
        if event.get("state") == "failed":
            raise LocalClusterError(str(event["error"]))
        tell(event)
    return None


def end_supervisor(supervisor: Supervisor) -> None:
    """Close the lifeline and wait for the end of the supervisor."""
    if supervisor.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            supervisor.stdin.close()
    try:
        supervisor.wait(DOWN_SECONDS)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait(10)
    finally:
        if supervisor.stdout is not None:
            supervisor.stdout.close()

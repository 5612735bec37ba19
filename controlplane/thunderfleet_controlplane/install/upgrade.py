"""`thunderfleet upgrade`: replaces the installed version by the one that runs this command, or rolls back.

The property lists of the former version are kept until the new version is healthy. Running this again after an interruption
completes it; the steps are those of `init`, each of which changes only what is not yet right.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from thunderfleet_lib.csr.rules import is_control_plane
from thunderfleet_lib.host import yamltext
from thunderfleet_lib.host.hostcmd import BlockingHost, Failure

from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.daemons.plan import EXIT_SECONDS, NODE, ORDER, HostConfig, from_state, label
from thunderfleet_controlplane.install.backup import archive
from thunderfleet_controlplane.install.backup.save import contents
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.init import InitOptions, install
from thunderfleet_controlplane.install.join import start_kubelet, until_own_node_ready
from thunderfleet_controlplane.install.mac.daemons import put_daemon, remove_daemon
from thunderfleet_controlplane.install.mac.facts import installed, other_names, version_in
from thunderfleet_controlplane.install.mac.files import make_folder, only_one, read_json, remove, write
from thunderfleet_controlplane.install.mac.preflight import INTERRUPTED, RESTORE_FIRST
from thunderfleet_controlplane.install.machine import Mac, refuse
from thunderfleet_controlplane.install.steps import cluster, kubelet
from thunderfleet_controlplane.install.steps.chart import SECONDS as HELM_SECONDS
from thunderfleet_controlplane.install.steps.chart import release
from thunderfleet_controlplane.install.steps.programs import put_python

REPOSITORY = "thunderfleet/thunderfleet"
"""``image.repository`` of the chart, under which a kubelet has its own installation."""
OPERATOR_SECONDS = 120.0
INSTALL = "run `sudo thunderfleet init`, or `sudo thunderfleet join -` with the join line that `init` prints on another Mac"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{cluster.SYSTEM_NAMESPACE}/deployments/thunderfleet-operator"


@dataclass(frozen=True)
class Steps:
    """The operations of an upgrade on the programs of this Mac."""

    start: Callable[[Mac], None]
    """Installs and starts this version, and waits until it is Ready."""
    chart: Callable[[Mac], None]
    """Upgrades the chart, and waits until its operator is available."""
    healthy: Callable[[Mac], None]
    """Waits until the control plane and the Node are Ready."""
    back: Callable[[Mac, str], None]
    """Rolls the chart back to a revision."""


def upgrade(mac: Mac, steps: Steps | None = None) -> None:
    """Upgrade. Raises InstallError; running it again continues."""
    steps = steps or Steps(start, chart, healthy, roll_back_chart)
    layout = mac.layout
    mac.step("preflight", "checking this Mac")
    facts = mac.facts(ORDER if layout.control_plane.exists() else NODE)
    problems = [] if facts.root else ["this needs root: run it with sudo"]
    if facts.root and not facts.joined:
        problems.append(f"nothing is installed: {INSTALL}")
    problems += [RESTORE_FIRST] * facts.restoring + [INTERRUPTED] * facts.joining
    refuse([*problems, *facts.changeable])
    with only_one(layout.lock):
        _upgrade(mac, steps)


def _upgrade(mac: Mac, steps: Steps) -> None:
    layout = mac.layout
    found = installed(layout)
    if found is None:
        raise InstallError(f"no kubelet is installed: {INSTALL}")
    version, prefix = found
    if layout.control_plane.exists() and (others := _others(mac)):
        raise InstallError("\n".join(others))
    _keep(mac, version)
    mac.step("upgrade", f"from {version or 'an unknown version'} to {mac.shipped.version}")
    try:
        _serve_both(layout, version, prefix, mac.shipped.version)
        steps.start(mac)
        if layout.control_plane.exists():
            steps.chart(mac)
    except (Exception, KeyboardInterrupt) as error:
        raise _rolled_back(mac, steps, error) from error
    remove(layout.former_version)
    mac.step("upgrade", f"version {mac.shipped.version} runs; pods of running groups keep the version they have")


def _keep(mac: Mac, version: str | None) -> None:
    """Keep the data for a rollback, and a backup of the control plane. An interrupted upgrade has already done this."""
    layout = mac.layout
    if layout.former_version.exists():
        return
    part = layout.former_version.with_name(f"{layout.former_version.name}.part")
    remove(part)
    make_folder(part, 0o700)
    if layout.control_plane.exists():
        mac.step("backup", f"saving the control plane in {layout.before_upgrade}")
        about = archive.About(version or "0", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        archive.write(layout.before_upgrade, about, contents(layout), force=True)
        write(part / "release", release(layout).encode(), 0o600)
    for path in _files(layout):
        if path.exists():
            write(part / path.name, path.read_bytes(), 0o600)
    part.rename(layout.former_version)


def _files(layout: HostLayout) -> list[Path]:
    return [layout.kubelet_config, *(layout.plist(label(name)) for name in ORDER)]


def _serve_both(layout: HostLayout, version: str | None, prefix: Path, new: str) -> None:
    """Configure the kubelet to also serve the image of the former version while its files exist."""
    content = yamltext.load(layout.kubelet_config.read_text(encoding="utf-8")) or {}
    images: dict[str, Any] = dict(content.get("images") or {})
    for name, folder in list(images.items()):
        tag = name.removeprefix(f"{REPOSITORY}:")
        # The kubelet's own version needs no entry. An older version may have been replaced in its folder.
        if tag != name and (tag == new or version_in(Path(str(folder))) not in (tag, None)):
            del images[name]
    if version not in (None, new):
        images[f"{REPOSITORY}:{version}"] = str(prefix)
    content = {key: value for key, value in content.items() if key != "images"} | ({"images": images} if images else {})
    write(layout.kubelet_config, yaml.safe_dump(content, sort_keys=False).encode(), 0o644)


def _rolled_back(mac: Mac, steps: Steps, error: BaseException) -> InstallError:
    """The error of an upgrade, after the former version was put back."""
    why = f"the upgrade to version {mac.shipped.version} failed: {error}" if str(error) else "the upgrade was interrupted"
    mac.step("upgrade", "going back to the previous version")
    try:
        put_back(mac)
        steps.healthy(mac)
        revision = mac.layout.former_version / "release"
        if revision.exists() and revision.read_text():
            steps.back(mac, revision.read_text())
    except (Exception, KeyboardInterrupt) as second:
        return InstallError(
            f"{why}\nGoing back failed too: {second}\nRun this again, or `thunderfleet upgrade` of the previous version"
        )
    remove(mac.layout.former_version)
    return InstallError(f"{why}\nThe previous version was restored, and runs")


def put_back(mac: Mac) -> None:
    """Start the daemons of the former version. Raises InstallError."""
    layout = mac.layout
    config = layout.former_version / layout.kubelet_config.name
    write(layout.kubelet_config, config.read_bytes(), 0o644)
    for name in ORDER:
        kept, seconds = layout.former_version / layout.plist(label(name)).name, EXIT_SECONDS.get(name, kubelet.EXIT_SECONDS)
        if kept.exists():
            put_daemon(mac.launchctl, layout.plist(label(name)), label(name), kept.read_bytes(), seconds)
        else:
            remove_daemon(mac.launchctl, layout.plist(label(name)), label(name), seconds)
        mac.step("upgrade", f"{label(name)}: put back")


# -- the programs of this Mac ------------------------------------------------------------------------------------------------


def _config(mac: Mac) -> HostConfig:
    return from_state(read_json(mac.layout.state), mac.layout, other_names())


def start(mac: Mac) -> None:
    """Install and start this version, as `init` and `join` do. Raises InstallError."""
    if mac.layout.control_plane.exists():
        install(mac, InitOptions(chart=False), _config(mac))
    else:
        start_kubelet(mac, str(read_json(mac.layout.kubelet_state).get("name")))


def healthy(mac: Mac) -> None:
    """Wait until the API server of this Mac is ready, and its Node. Raises InstallError."""
    name = str(read_json(mac.layout.kubelet_state).get("name"))
    if not mac.layout.control_plane.exists():
        asyncio.run(until_own_node_ready(mac, name, datetime.now(UTC)))
        return

    async def wait() -> None:
        async with cluster.connect(mac.layout, _config(mac).local_server) as kube:
            await cluster.until_ready(kube, lambda: "")
            await cluster.until_node_ready(kube, name, datetime.now(UTC), lambda: "")

    asyncio.run(wait())


def _outdated(mac: Mac, *, control_planes: bool) -> dict[str, str]:
    """Other Macs with an older version, and the version: either Macs with a control plane, or the others."""

    async def nodes() -> list[dict[str, Any]]:
        async with cluster.connect(mac.layout, _config(mac).local_server) as kube:
            return (await kube.list(cluster.NODES))[0]

    own = str(read_json(mac.layout.kubelet_state).get("name"))
    return outdated(asyncio.run(nodes()), own, mac.shipped.version, control_planes=control_planes)


def _others(mac: Mac) -> list[str]:
    """Other Macs that must be upgraded first, because the operator's new pod could not run there."""
    found = _outdated(mac, control_planes=False)
    return [
        f"{name} has version {known}: upgrade it first, and Macs with a control plane last" for name, known in found.items()
    ]


def outdated(nodes: list[dict[str, Any]], own: str, version: str, *, control_planes: bool) -> dict[str, str]:
    """Ready Nodes of Macs, other than ``own``, whose kubelet is older than ``version``, and its version."""
    found = {}
    for node in nodes:
        name, about = node["metadata"]["name"], (node.get("status") or {}).get("nodeInfo") or {}
        match = re.search(r"-thunderfleet\.(.+)", str(about.get("kubeletVersion")))
        older = match and archive.newer(version, match[1]) and cluster.is_ready(node)
        if match and older and name != own and is_control_plane(node) == control_planes:
            found[name] = match[1]
    return found


def _helm(mac: Mac, *arguments: str) -> str:
    layout = mac.layout
    program = str(layout.control_plane_programs / "helm")
    options = ("--namespace", cluster.SYSTEM_NAMESPACE, "--kubeconfig", str(layout.local_kubeconfig))
    said = BlockingHost().run([program, *arguments, *options], HELM_SECONDS)
    if isinstance(said, Failure):
        raise InstallError(f"helm {arguments[0]} failed: {said.error.strip()[-600:] or said}")
    return said.text


def chart(mac: Mac) -> None:
    """Upgrade the chart, if it is installed, and wait until its operator is available. Raises InstallError."""
    if not (mac.layout.former_version / "release").read_text():
        mac.step("chart", f"namespace {cluster.SYSTEM_NAMESPACE} has no Helm release thunderfleet, so no chart is upgraded")
        return
    if left := _outdated(mac, control_planes=True):
        others = ", ".join(left)
        mac.step("chart", f"the chart is upgraded with the last Mac that has a control plane; not upgraded yet: {others}")
        return
    python = put_python(mac.layout, mac.shipped.digest, lambda part: mac.shipped.build(part, mac.layout.programs))
    mac.step("chart", f"upgrading the chart in {cluster.SYSTEM_NAMESPACE}")
    _helm(mac, "upgrade", "thunderfleet", str(mac.shipped.chart(python)), "--reset-then-reuse-values")
    mac.step("chart", "waiting for the operator")
    asyncio.run(_until_operator_available(mac))


def roll_back_chart(mac: Mac, revision: str) -> None:
    """Roll the chart back, if it was upgraded. Raises InstallError."""
    if release(mac.layout) not in ("", revision):
        _helm(mac, "rollback", "thunderfleet", revision)
        asyncio.run(_until_operator_available(mac))


async def _until_operator_available(mac: Mac) -> None:
    async with cluster.connect(mac.layout, _config(mac).local_server) as kube:

        async def problem() -> str:
            return unavailable(await kube.get_or_none(DEPLOYMENT))

        await cluster.until(problem, OPERATOR_SECONDS, "the operator is not available", lambda: "")


def unavailable(deployment: dict[str, Any] | None) -> str:
    """Why a Deployment is not rolled out; empty if it is."""
    if deployment is None:
        return "there is no Deployment thunderfleet-operator"
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    if status.get("observedGeneration", 0) < deployment["metadata"]["generation"]:
        return "the controller manager has not observed the change"
    counts = [int(status.get(name) or 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
    return "" if counts == [wanted] * 3 else f"{counts[1]} of {wanted} replicas are new, {counts[2]} are available"

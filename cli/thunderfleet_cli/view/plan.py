"""``plan``: where the operator would place a ModelDeployment on the current cluster.

The planner is that of ``thunderfleet-operator plan``; here the objects are read with the rights of the user.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from thunderfleet_crds import names
from thunderfleet_lib.kube import Json
from thunderfleet_localcluster.errors import LocalClusterError

from thunderfleet_cli.connection import connect
from thunderfleet_cli.view.page import BAD, GOOD, Page
from thunderfleet_cli.view.picture import read_lists

NEEDED: Mapping[str, str] = {
    "nodes": "Node",
    "profiles": names.NODEPROFILE_KIND,
    "links": names.THUNDERBOLTLINK_KIND,
    "deployments": names.MODELDEPLOYMENT_KIND,
    "caches": names.MODELCACHE_KIND,
    "everyPod": "Pod",
}
"""Required collections and their kinds. Without one of them, Macs would seem to have more free memory than they have."""
HELPFUL: Mapping[str, str] = {"plans": "ConfigMap"}
"""Without these, cables and connections of other groups are estimated."""
PLAN_SECONDS = 300.0
GROUP = re.compile(r"group \d+: (?P<none>no placement \()?")


def show_plan(arguments: argparse.Namespace) -> int:
    """``thunderfleet plan``. 0: every group has a placement; 3: one has none; 2: bad input. Raises LocalClusterError."""
    connection = connect(arguments.kubeconfig, arguments.context, arguments.namespace)
    found, unread = asyncio.run(read_lists(connection, (*NEEDED, *HELPFUL), None))
    missing = [unread[kind] for kind in NEEDED if kind in unread]
    if missing:
        raise LocalClusterError(f"cannot plan without all objects that use resources of Macs: {'; '.join(missing)}")
    for kind in HELPFUL:
        if kind in unread:
            print(f"thunderfleet: cables of other groups are estimated: {unread[kind]}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="thunderfleet-plan-") as folder:
        # Names of ModelDeployments have no dot.
        fleet, deployment = Path(folder) / "cluster.json", arguments.file
        fleet.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": _items(found)}), encoding="utf-8")
        if arguments.deployment is not None:
            deployment = Path(folder) / arguments.deployment.rpartition("/")[2]
            deployment.write_text(json.dumps(_known(found["deployments"], arguments.deployment, connection.namespace)))
        command = [*operator_command(), "plan", "--fleet", str(fleet), "--deployment", str(deployment), *_passed(arguments)]
        code, said = _run(command)
    if arguments.output == "text":
        page = Page()
        for line in said.splitlines():
            page.line(line, _style(line))
    else:
        print(said, end="")
    return code


def _style(line: str) -> str:
    """Of a group: whether it has a placement."""
    heading = GROUP.match(line)
    return "" if heading is None else BAD if heading["none"] else GOOD


def operator_command() -> list[str]:
    """The operator's command line: the installed command, else its entry point with this Python."""
    installed = Path(sys.executable).parent / "thunderfleet-operator"
    if installed.exists():
        return [str(installed)]
    return [sys.executable, "-c", "import sys; from thunderfleet_operator.cli import main; sys.exit(main())"]


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and output; errors are shown."""
    try:
        done = subprocess.run(command, check=False, timeout=PLAN_SECONDS, stdout=subprocess.PIPE, text=True)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        raise LocalClusterError(
            f"the plan was not finished within {PLAN_SECONDS:g} s; plan for fewer Macs with --without"
        ) from None


def _items(found: Mapping[str, Sequence[Json]]) -> list[Json]:
    """The objects in the form that kubectl prints: with their kinds, which lists of the API server omit."""
    kinds = {**NEEDED, **HELPFUL}
    return [{**item, "kind": kinds[key]} for key, items in found.items() for item in items]


def _known(deployments: Sequence[Json], name: str, namespace: str) -> Json:
    """The ModelDeployment of that name. Raises LocalClusterError."""
    space, _, short = name.rpartition("/")
    for one in deployments:
        if (one["metadata"].get("namespace"), one["metadata"]["name"]) == (space or namespace, short):
            return {**one, "apiVersion": names.API_VERSION, "kind": names.MODELDEPLOYMENT_KIND}
    raise LocalClusterError(
        f"there is no ModelDeployment {short} in namespace {space or namespace}; to plan one that is not in the cluster, name "
        "its file with -f",
        usage=True,
    )


def _passed(arguments: argparse.Namespace) -> list[str]:
    output = "table" if arguments.output == "text" else arguments.output
    options = ["--output", output, "--runners-up", str(arguments.runners_up)]
    for option, values in (("--what-if", arguments.what_if), ("--without", arguments.without)):
        options += [word for value in values for word in (option, value)]
    return options

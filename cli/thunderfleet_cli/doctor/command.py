"""The steps of ``thunderfleet doctor``: ask, check, repair, show."""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

from thunderfleet_controlplane.install.mac import gpu_memory
from thunderfleet_lib.host.hostcmd import Failure, FailureKind, Host
from thunderfleet_lib.host.privilege import ROOT, take_own_environment
from thunderfleet_localcluster.errors import LocalClusterError

from thunderfleet_cli.connection import connect
from thunderfleet_cli.doctor import host, installed, limit, page
from thunderfleet_cli.doctor.checks import mac
from thunderfleet_cli.doctor.checks.apiservers import api_servers
from thunderfleet_cli.doctor.checks.check import Check, State
from thunderfleet_cli.doctor.checks.system import VERSION
from thunderfleet_cli.doctor.objects import cluster_checks
from thunderfleet_cli.terminal import printable


def doctor(arguments: argparse.Namespace) -> int:
    """``thunderfleet doctor``; 1 when a check fails. Raises LocalClusterError."""
    take_own_environment()
    if arguments.fix and os.geteuid() != 0:
        raise LocalClusterError("--fix changes settings of this Mac: run it as root, with sudo", usage=True)
    if arguments.gpu_memory is not None and not arguments.fix:
        raise LocalClusterError("--gpu-memory changes a setting of this Mac: use it together with --fix", usage=True)
    python = installed.kubelets_python(installed.layout()) or os.path.realpath(sys.executable)
    checks, repairs = asyncio.run(_examine(arguments, python))
    if arguments.output == "json":
        print(json.dumps(page.as_values(checks, repairs), indent=2))
    else:
        print(printable(page.as_text(checks, repairs, arguments.fix)), end="")
    return 1 if any(check.state is State.FAILURE for check in checks) else 0


async def _examine(arguments: argparse.Namespace, python: str) -> tuple[list[Check], list[host.Repaired]]:
    machine = host.mac()
    # A kubeconfig that is wrong ends the command before anything is changed.
    here, elsewhere = await asyncio.gather(_here(machine, python), _cluster(arguments))
    repairs = await host.repair(machine, here) if arguments.fix else []
    if arguments.gpu_memory is not None:
        repairs.append(await asyncio.to_thread(limit.put, arguments.gpu_memory, installed.layout()))
    if repairs:
        here = await _here(machine, python)
        after = {check.name: check for check in here}
        repairs = [host.judged(one, after[one.name]) if one.name in after else one for one in repairs]
    return here + elsewhere, repairs


async def _here(machine: Host, python: str) -> list[Check]:
    """The checks of this Mac, if it is one."""
    answers = await host.ask(machine, mac.questions(python))
    version = answers[VERSION]
    if isinstance(version, Failure) and version.kind is FailureKind.ABSENT:
        return [Check("macos", State.UNKNOWN, "this machine is not a Mac: it has no sw_vers", subject="this machine")]
    where = installed.layout()
    found = mac.checks(answers, python, installed.manages_ports(where), gpu_memory.is_kept(where))
    seen = await installed.balanced(where)
    return found if seen is None else [*found, api_servers(seen)]


def _for_root() -> Path | None:
    """The kubeconfig that root uses; None for other users. `sudo` keeps $HOME, so ~/.kube/config may be another user's."""
    if os.geteuid() != ROOT:
        return None
    own = installed.own_kubeconfig(installed.layout())
    if own is None:
        raise LocalClusterError(
            "as root, doctor uses no kubeconfig from a home folder: give one with --kubeconfig, or run it without sudo",
            usage=True,
        )
    return own


def _announce(cables: int) -> None:
    """Report slow steps on standard error; standard output has only the result."""
    print(f"testing {cables} cable{'s' if cables != 1 else ''}, a few seconds each …", file=sys.stderr, flush=True)


async def _cluster(arguments: argparse.Namespace) -> list[Check]:
    """The checks of the cluster; without a kubeconfig, one check that reports this."""
    given: Path | None = arguments.kubeconfig
    try:
        connection = connect(given or _for_root(), arguments.context, None)
        return await cluster_checks(connection, None if arguments.no_test else _announce)
    except LocalClusterError as error:
        if given or arguments.context:
            raise
        return [Check("api-server", State.UNKNOWN, f"other Macs and cables are not checked: {error}", subject="cluster")]

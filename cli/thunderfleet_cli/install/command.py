"""The functions of the commands that install on this Mac. Each takes the parsed arguments and returns an exit code."""

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

from thunderfleet_controlplane.assets import ETCDUTL
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.joinline import LIMIT, decode
from thunderfleet_controlplane.install.machine import Mac, Shipped
from thunderfleet_lib.host.privilege import take_own_environment
from thunderfleet_lib.kube import ApiError
from thunderfleet_localcluster import image
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.programs import find_programs
from thunderfleet_localcluster.progress import Progress
from thunderfleet_localcluster.shipped import shipped_in


def _mac(progress: Progress) -> Mac:
    return Mac(
        Shipped(
            image.version(),
            lambda: find_programs(progress.event),
            lambda: find_programs(progress.event, ETCDUTL),
            image.digest,
            image.copy,
            lambda python: shipped_in(python, "charts/thunderfleet"),
        ),
        lambda text: print(text, flush=True),
    )


def _init(arguments: argparse.Namespace, mac: Mac) -> None:
    from thunderfleet_controlplane.install.init import InitOptions, init

    init(
        mac,
        InitOptions(
            name=arguments.node_name,
            address=arguments.advertise_address,
            kubelet_config=arguments.config,
            thunderbolt_ports=arguments.thunderbolt_ports,
            chart=not arguments.no_chart,
            dry_run=arguments.dry_run,
        ),
    )


def _join(arguments: argparse.Namespace, mac: Mac) -> None:
    from thunderfleet_controlplane.install.join import JoinOptions, join
    from thunderfleet_controlplane.install.sharing import join as sharing

    try:
        line = decode(_line(arguments.line, arguments.token_file))
    except ValueError as error:
        raise InstallError(str(error), usage=True) from None
    ports = arguments.thunderbolt_ports
    if arguments.control_plane:
        sharing.join(
            mac,
            sharing.JoinControlPlaneOptions(line, arguments.node_name, arguments.advertise_address, arguments.config, ports),
        )
        return
    if arguments.advertise_address is not None:
        raise InstallError("--advertise-address is for --control-plane", usage=True)
    join(mac, JoinOptions(line, arguments.node_name, arguments.config, ports))


def _token(arguments: argparse.Namespace, mac: Mac) -> None:
    from thunderfleet_controlplane.install.sharing.token import create

    create(mac, control_plane=arguments.control_plane)


def _line(given: str | None, file: Path | None) -> str:
    """The line that contains the token, wherever it is. Raises InstallError."""
    if (given is None) == (file is None):
        raise InstallError(
            "give the join line that `thunderfleet init` or `token create` printed: on standard input (`-`), in a file "
            "(--token-file), or as argument",
            usage=True,
        )
    if given not in (None, "-"):
        return str(given)
    try:
        # One byte more than the limit of a line, to detect longer lines and refuse them.
        with nullcontext(sys.stdin) if file is None else file.open(encoding="utf-8") as source:
            return source.readline(LIMIT + 1).strip()
    except (OSError, ValueError) as error:
        raise InstallError(f"cannot read the join line from {file or 'standard input'}: {error}", usage=True) from None


def _backup(arguments: argparse.Namespace, mac: Mac) -> None:
    from thunderfleet_controlplane.install.backup.save import BackupOptions, backup

    backup(mac, BackupOptions(arguments.file.absolute(), arguments.force))


def _restore(arguments: argparse.Namespace, mac: Mac) -> None:
    from thunderfleet_controlplane.install.backup.restore import RestoreOptions, restore

    restore(mac, RestoreOptions(None if arguments.undo else arguments.file.absolute(), arguments.advertise_address))


def _upgrade(_: argparse.Namespace, mac: Mac) -> None:
    from thunderfleet_controlplane.install.upgrade import upgrade

    upgrade(mac)


def _reset(arguments: argparse.Namespace, mac: Mac) -> None:
    from thunderfleet_controlplane.install.reset import ResetOptions, reset

    reset(mac, ResetOptions(arguments.force, arguments.member))


def _command(act: Callable[[argparse.Namespace, Mac], None]) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        take_own_environment()
        try:
            with Progress() as progress:
                act(arguments, _mac(progress))
        except InstallError as error:
            raise LocalClusterError(str(error), usage=error.usage) from error
        except (ApiError, OSError) as error:
            raise LocalClusterError(f"{error}; run the same command again to continue") from error
        return 0

    return run


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "init": _command(_init),
    "join": _command(_join),
    "token": _command(_token),
    "upgrade": _command(_upgrade),
    "backup": _command(_backup),
    "restore": _command(_restore),
    "reset": _command(_reset),
}
"""Implementations of the commands, by name; each raises LocalClusterError."""

"""The command lines of the commands that install on this Mac."""

import argparse
from collections.abc import Callable
from pathlib import Path

from thunderfleet_cli.parsers import Parsers


def add(commands: Parsers) -> None:
    """Adds ``init``, ``join``, ``token``, ``upgrade``, ``backup``, ``restore`` and ``reset``."""

    def one(name: str, text: str, description: str) -> argparse.ArgumentParser:
        return commands.add(name, text, description, call=_call)

    init = one(
        "init",
        "make this Mac a control plane that survives reboots, and its first node",
        "Install a Kubernetes control plane on this Mac as LaunchDaemons, make the Mac a node, install the chart, and print "
        "the join line, which other Macs need to join. Running it again completes an interrupted run, renews certificates, "
        "adopts a new address of this Mac and prints a new join line. Example: `sudo thunderfleet init`",
    )
    init.add_argument(
        "--advertise-address",
        metavar="IP",
        help="address at which other Macs reach this Mac (default: that of the interface of the default route, or of bridge0)",
    )
    init.add_argument("--name", dest="node_name", metavar="NODE", help="name of this Mac's Node (default: the host name)")
    init.add_argument("--no-chart", action="store_true", help="do not install the chart")
    init.add_argument(
        "--dry-run", action="store_true", help="check this Mac and print what would be installed, but change nothing"
    )
    join = one(
        "join",
        "make this Mac a node of a control plane on another Mac",
        "Join the control plane that `thunderfleet init` installed on another Mac; the kubelet becomes a LaunchDaemon. Running "
        "it again completes an interrupted run. Example: `echo tf1-… | sudo thunderfleet join -`",
    )
    join.add_argument(
        "line",
        nargs="?",
        metavar="LINE",
        help="the join line that `thunderfleet init` or `token create` printed, without `echo`; it begins with tf1-; `-` reads "
        "it from standard input. If it is an argument, all users of this Mac can read it in the process list while `join` runs",
    )
    join.add_argument("--token-file", type=Path, metavar="FILE", help="read the join line from a file")
    join.add_argument("--name", dest="node_name", metavar="NODE", help="name of this Mac's Node (default: the host name)")
    join.add_argument(
        "--control-plane",
        action="store_true",
        help="give this Mac a control plane too, with the join line that `thunderfleet token create --control-plane` printed; "
        "three survive the loss of one",
    )
    join.add_argument(
        "--advertise-address",
        metavar="IP",
        help="with --control-plane: address at which other Macs reach this Mac (default: that of the interface of the default "
        "route, or of bridge0)",
    )
    for parser in (init, join):
        parser.add_argument(
            "--config", type=Path, metavar="FILE", help="configuration file of this Mac's kubelet; a copy of it is installed"
        )
        parser.add_argument(
            "--thunderbolt-ports",
            choices=("Managed", "Unmanaged"),
            help="Managed: the kubelet gives each Thunderbolt port a network service and an address of its own, and takes it "
            "out of the Thunderbolt Bridge; Unmanaged: it leaves them as they are, and undoes what it changed (default: as "
            "configured before, else Managed)",
        )
    one(
        "upgrade",
        "replace the installed version on this Mac with the one that runs this command",
        "Restart the LaunchDaemons of this Mac with the version that runs this command and, on the last Mac with a control "
        "plane, upgrade the chart. If the new version is not healthy in time, the previous one is restored. Running groups "
        "keep the version that they have. Upgrade Macs with a control plane last. Example: `sudo "
        "/usr/local/thunderfleet-NEW/bin/thunderfleet upgrade`",
    )
    _add_backup(one)
    _add_token(commands)
    reset = one(
        "reset",
        "remove what init or join installed on this Mac",
        "Stop this Mac's pods and LaunchDaemons, and remove what init or join installed, with etcd's data and the "
        "certificates. It prints what it does not remove. If other Macs have a control plane too, this Mac is removed from "
        "their etcd first; `reset` is refused if they would not work without this Mac. Example: `sudo thunderfleet reset`",
    )
    reset.add_argument(
        "--force",
        action="store_true",
        help="reset this Mac even if the other control planes do not answer, or would not work without it",
    )
    reset.add_argument(
        "--member",
        metavar="NODE",
        help="for another Mac that will not come back: remove its control plane from etcd, and delete its Node; change "
        "nothing on this Mac",
    )


def _add_token(commands: Parsers) -> None:
    token = commands.add("token", "create a join line for another Mac", call=_call)
    create = Parsers(token, "token_command").add(
        "create",
        "print a join line for another Mac",
        "Print a join line, for `thunderfleet join` on other Macs, valid for 24 hours. With --control-plane, it is for one "
        "Mac, is valid for two hours, and gives that Mac the keys of the cluster; from then on, the etcd of this Mac accepts "
        "other members. Example: `sudo thunderfleet token create --control-plane`",
    )
    create.add_argument("--control-plane", action="store_true", help="for a Mac that gets a control plane too")


def _add_backup(one: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    backup = one(
        "backup",
        "save the control plane of this Mac in one file",
        "Save the control plane of this Mac in one file while it runs: a snapshot of etcd, the certificate authorities with "
        "their keys, and the key that encrypts Secrets. The file is not encrypted, and only root can read it. "
        "Example: `sudo thunderfleet backup /Volumes/Backup/thunderfleet.backup`",
    )
    backup.add_argument("file", type=Path, metavar="FILE", help="the file to write; without --force, it must not exist")
    backup.add_argument("--force", action="store_true", help="replace FILE if it exists")
    restore = one(
        "restore",
        "replace the control plane of this Mac with the one in a backup",
        "Replace the control plane of this Mac, if it has one, with that of a backup. Macs that had joined it find it "
        "again, as long as its address or its name is the same. The replaced control plane is kept until the restored one "
        "is Ready, and is put back if that takes more than five minutes. Running it again completes an interrupted run. "
        "Example: `sudo thunderfleet restore /Volumes/Backup/thunderfleet.backup`",
    )
    what = restore.add_mutually_exclusive_group(required=True)
    what.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a file that `thunderfleet backup` wrote")
    what.add_argument("--undo", action="store_true", help="put back the control plane that an interrupted restore replaced")
    restore.add_argument(
        "--advertise-address",
        metavar="IP",
        help="address at which other Macs reach this Mac (default: that of the backup if this Mac has it, otherwise as with "
        "init)",
    )


def _call(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.install.command import COMMANDS

    return COMMANDS[arguments.command](arguments)

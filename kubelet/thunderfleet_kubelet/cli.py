"""The command line: join a cluster, run, and print what launchd needs."""

import argparse
import asyncio
import logging
import os
import plistlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from thunderfleet_kubelet.config import Config, ConfigError, load, same_user_problem

DEFAULT_ROOT = "/var/lib/thunderfleet/kubelet"
LABEL = "io.thunderfleet.kubelet"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="thunderfleet-kubelet",
        description="Makes this machine a Kubernetes node whose pods are native process groups.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        sentence = text[0].upper() + text[1:] + "."
        shape = argparse.ArgumentDefaultsHelpFormatter
        one = commands.add_parser(name, help=text, description=sentence, formatter_class=shape)
        one.add_argument("--root", type=Path, default=Path(DEFAULT_ROOT), metavar="DIR", help="folder of identity and pods")
        one.add_argument("--config", type=Path, metavar="FILE", help="settings (YAML); `run` remembers the one given at `join`")
        one.add_argument(
            "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="how much to say on stderr"
        )
        return one

    join = add("join", "become a node of a cluster, then run")
    join.add_argument("--server", required=True, metavar="https://IP:PORT", help="the API server")
    join.add_argument("--token", required=True, help="bootstrap token, as `thunderfleet token` prints it")
    join.add_argument("--ca-hash", required=True, metavar="sha256:HEX", help="hash of the cluster's CA (its public key)")
    join.add_argument("--replace", action="store_true", help="take the place of a Node of this name that exists already")
    join.add_argument("--no-run", action="store_true", help="only join; `run` later")
    add("run", "run as the node that this folder has joined as")
    add("launchd-plist", "print the root LaunchDaemon that runs this kubelet")
    return top


def plist(program: str, root: Path, config: Path | None) -> bytes:
    """The LaunchDaemon's property list (XML)."""
    arguments = [program, "run", "--root", str(root)]
    if config is not None:
        arguments += ["--config", str(config)]
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": arguments,
            "RunAtLoad": True,
            "KeepAlive": True,
            # Containers outlive their kubelet: launchd must not end them with it.
            "AbandonProcessGroup": True,
            "ExitTimeOut": 60,
            # Containers inherit how launchd lets the daemon run; anything less is slowed down.
            "ProcessType": "Interactive",
            "SoftResourceLimits": {"NumberOfFiles": 65536},
            "HardResourceLimits": {"NumberOfFiles": 65536},
            "StandardErrorPath": "/var/log/thunderfleet-kubelet.log",
        }
    )


def in_user_namespace() -> bool:
    """True when root here is somebody else outside."""
    try:
        words = Path("/proc/self/uid_map").read_text().split()
    except OSError:
        return False
    return words != ["0", "0", "4294967295"]


def settings(file: Path | None) -> Config:
    """The settings, fit for the user that runs this. Raises ConfigError."""
    config = load(file)
    problem = same_user_problem(config, uid=os.geteuid(), in_user_namespace=in_user_namespace())
    if problem:
        raise ConfigError(f"{file or 'the defaults'}: {problem}")
    return config


async def _join(arguments: argparse.Namespace) -> None:
    from thunderfleet_kubelet import app
    from thunderfleet_kubelet.bootstrap import join

    server = join.parse_server(arguments.server)
    token = join.check_token(arguments.token)
    wanted = join.check_hash(arguments.ca_hash)
    root = arguments.root.resolve()
    config_file = arguments.config.resolve() if arguments.config else None
    config = settings(config_file)
    with app.only_one(root):
        identity = join.standing_identity(root, server, config.node_name)
        if identity is None:
            # An identity of ours that has only run out may come back under its own name.
            replace = arguments.replace or join.load_identity(root) is not None
            identity = await join.join(
                server=server,
                token=token,
                wanted_hash=wanted,
                root=root,
                node_name=config.node_name,
                config_file=config_file,
                replace=replace,
                seconds=config.certificate_seconds,
            )
            logging.getLogger("thunderfleet_kubelet").info("joined %s as node %s", server.url, config.node_name)
        if not arguments.no_run:
            await app.run(root, identity, config)


async def _run(arguments: argparse.Namespace) -> None:
    from thunderfleet_kubelet import app
    from thunderfleet_kubelet.bootstrap import join

    root = arguments.root.resolve()
    known = join.load_identity(root)
    if known is None:
        raise join.JoinError(f"{root} holds no identity: join first (`thunderfleet token` prints the whole line)")
    config_file = arguments.config.resolve() if arguments.config else known.config_file
    config = settings(config_file)
    if "node_name" not in config.model_fields_set:
        # The machine may have been renamed since; the Node was not.
        config = config.model_copy(update={"node_name": known.node_name})
    identity = join.standing_identity(root, None, config.node_name)
    if identity is None:
        raise join.JoinError(f"the certificate in {known.folder} has run out: join again with a new token")
    with app.only_one(root):
        await app.run(root, identity, config)


def main(argv: Sequence[str] | None = None) -> int:
    """0: done; 1: it failed; 2: the command line or the settings cannot be used."""
    arguments = parser().parse_args(argv)
    shape = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(level=arguments.log_level.upper(), format=shape, stream=sys.stderr, force=True)
    if arguments.command == "launchd-plist":
        program = shutil.which("thunderfleet-kubelet") or os.path.abspath(sys.argv[0])
        config = arguments.config.resolve() if arguments.config else None
        sys.stdout.write(plist(program, arguments.root.resolve(), config).decode())
        return 0
    # Late: --help should not wait for the API client.
    from thunderfleet_lib.kube import ApiError

    from thunderfleet_kubelet.bootstrap.certificates import CertificateError
    from thunderfleet_kubelet.bootstrap.join import JoinError, UsageError

    try:
        asyncio.run(_join(arguments) if arguments.command == "join" else _run(arguments))
    except (ConfigError, UsageError) as error:
        print(f"thunderfleet-kubelet: {error}", file=sys.stderr)
        return 2
    except (JoinError, CertificateError, ApiError, OSError) as error:
        print(f"thunderfleet-kubelet: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

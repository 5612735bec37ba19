"""The command line: joins a cluster, runs the kubelet, prints its launchd property list."""

import argparse
import asyncio
import logging
import os
import plistlib
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from thunderfleet_lib import collector, logs
from thunderfleet_lib.helpformat import HelpFormatter
from thunderfleet_lib.net import authorities

from thunderfleet_kubelet import priority

DEFAULT_ROOT = "/var/lib/thunderfleet/kubelet"
LABEL = "io.thunderfleet.kubelet"
LOG_FILE = "/var/log/thunderfleet-kubelet.log"
DEFAULT_LOG_LEVEL = "info"
EXIT_SECONDS = 60
"""How long launchd waits for the kubelet, beyond the time that pods get at a shutdown."""
LOG_BYTES = 10 * 1024**2
LOG_FILES = 5
STDERR_BYTES = 1024**2
"""The size at which standard error, if it is a file, is emptied at start. With --log-file, only Python itself prints there."""


def parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    top = argparse.ArgumentParser(
        prog="thunderfleet-kubelet",
        description="Make this machine a Kubernetes node whose pods run as native processes.",
        formatter_class=HelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, log_file: Path | None = None) -> argparse.ArgumentParser:
        description = text[0].upper() + text[1:] + "."
        one = commands.add_parser(name, help=text, description=description, formatter_class=HelpFormatter)
        one.add_argument(
            "--root", type=Path, default=Path(DEFAULT_ROOT), metavar="DIR", help="folder for the node's identity and its pods"
        )
        one.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            help="YAML configuration file; `thunderfleet-kubelet run` without it uses the file that was given to join",
        )
        one.add_argument(
            "--log-file",
            type=Path,
            default=log_file,
            metavar="FILE",
            help=f"write the log to FILE instead of standard error; rotated, {LOG_FILES} files of {LOG_BYTES // 1024**2} MiB",
        )
        one.add_argument(
            "--log-level", default=DEFAULT_LOG_LEVEL, choices=["debug", "info", "warning", "error"], help="minimum log level"
        )
        logs.add_argument(one)
        return one

    join = add("join", "join a cluster as a node, then run")
    join.add_argument("--server", required=True, metavar="https://HOST:PORT", help="URL of the API server")
    token = join.add_mutually_exclusive_group(required=True)
    token.add_argument(
        "--token",
        help="bootstrap token, as `thunderfleet local token` or `kubeadm token create` prints it; every user of the machine "
        "can read it in the process list",
    )
    token.add_argument("--token-file", type=Path, metavar="FILE", help="file that has only the bootstrap token")
    join.add_argument(
        "--ca-hash",
        required=True,
        metavar="sha256:HEX",
        help="hash of the public key of the cluster's CA, as `thunderfleet local token` or `kubeadm token create "
        "--print-join-command` prints it",
    )
    join.add_argument("--replace", action="store_true", help="replace an existing Node of the same name")
    join.add_argument("--no-run", action="store_true", help="join the cluster, but do not run the kubelet")
    add("run", "run the kubelet of a node that has joined")
    add("launchd-plist", "print the property list of a LaunchDaemon that runs this kubelet", Path(LOG_FILE))
    return top


class PrivateLog(RotatingFileHandler):
    """A rotated log that only its owner can read, because pods on this machine run as other users."""

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        os.fchmod(stream.fileno(), 0o600)
        return stream


def set_up_logging(level: str, file: Path | None, form: logs.Format = logs.Format.AUTO) -> None:
    """Logs to ``file`` or standard error. Raises OSError."""
    if file is None:
        logs.set_up("kubelet", level, form)
        return
    handler = PrivateLog(file, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1, encoding="utf-8")
    bound(sys.stderr.fileno())
    # A full disk would otherwise print a traceback for every record.
    logs.set_up("kubelet", level, form, handler=handler, quiet=True)


def bound(fd: int) -> None:
    """Empties a file that launchd keeps open and never rotates."""
    about = os.fstat(fd)
    if stat.S_ISREG(about.st_mode) and about.st_size > STDERR_BYTES:
        os.ftruncate(fd, 0)


def plist(
    program: str,
    root: Path,
    config: Path | None,
    log_file: Path = Path(LOG_FILE),
    log_level: str = DEFAULT_LOG_LEVEL,
    shutdown_seconds: int = 0,
) -> bytes:
    """The property list (XML) of the LaunchDaemon. ``shutdown_seconds``: how long pods get to end at a shutdown."""
    arguments = [program, "run", "--root", str(root), "--log-file", str(log_file)]
    if log_level != DEFAULT_LOG_LEVEL:
        arguments += ["--log-level", log_level]
    if config is not None:
        arguments += ["--config", str(config)]
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": arguments,
            "RunAtLoad": True,
            "KeepAlive": True,
            # Containers outlive the kubelet, so launchd must not kill them with it.
            "AbandonProcessGroup": True,
            "ExitTimeOut": EXIT_SECONDS + shutdown_seconds,
            # Containers inherit the process type; launchd throttles all others.
            "ProcessType": "Interactive",
            # From its first instruction. The kubelet takes it back.
            "Nice": priority.NICE,
            "SoftResourceLimits": {"NumberOfFiles": 65536},
            "HardResourceLimits": {"NumberOfFiles": 65536},
            # launchd cannot rotate it, so the kubelet's log is another file.
            "StandardErrorPath": str(log_file.with_suffix(".stderr.log")),
        }
    )


async def _join(arguments: argparse.Namespace) -> bool:
    """Joins, unless the node has joined before. Returns whether to run the kubelet afterwards."""
    from thunderfleet_kubelet import configprocess, oneoff
    from thunderfleet_kubelet.answers import Answers
    from thunderfleet_kubelet.bootstrap import arguments as given
    from thunderfleet_kubelet.bootstrap import certificate_process
    from thunderfleet_kubelet.bootstrap import identity as identities
    from thunderfleet_kubelet.bootstrap.certificates import read_ahead
    from thunderfleet_kubelet.configfile import load
    from thunderfleet_kubelet.singleton import only_one

    server = given.parse_server(arguments.server)
    token = given.check_token(arguments.token or given.read_token(arguments.token_file))
    wanted = given.check_hash(arguments.ca_hash)
    root = arguments.root.resolve()
    config_file = arguments.config.resolve() if arguments.config else None
    config = load(config_file)
    # Verifying the cluster's CA needs the cryptography library here too, and the configuration is read here anyway.
    with only_one(root), oneoff.here(certificate_process.WORK), oneoff.here(configprocess.WORK):
        identity = identities.usable_identity(root, server, config.node_name)
        if identity is None:
            from thunderfleet_kubelet.bootstrap.join import join

            # A node whose certificate has expired may join again under its own name.
            replace = arguments.replace or identities.load_identity(root) is not None
            identity = await join(
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
        # What the kubelet asks for when it starts.
        answers = Answers(identity.answers)
        configprocess.load(config_file, identity.node_name, answers)
        read_ahead((identity.client, identity.serving), answers)
        answers.save()
    return not arguments.no_run


async def _run(arguments: argparse.Namespace, adopted: Callable[[], None]) -> None:
    from thunderfleet_kubelet import configprocess
    from thunderfleet_kubelet.answers import Answers
    from thunderfleet_kubelet.bootstrap import identity as identities
    from thunderfleet_kubelet.bootstrap.certificates import read_ahead
    from thunderfleet_kubelet.bootstrap.errors import JoinError, join_again
    from thunderfleet_kubelet.singleton import only_one

    root = arguments.root.resolve()
    known = identities.load_identity(root)
    if known is None:
        raise JoinError(
            f"{root}: no identity found; join a cluster first (thunderfleet-kubelet join; on a Mac with a "
            "control plane, `sudo thunderfleet init`; on another Mac of `thunderfleet join`, run that again)"
        )
    config_file = arguments.config.resolve() if arguments.config else known.config_file
    # While processes read certificates and settings, this one imports the rest.
    answers = Answers(known.answers)
    with ThreadPoolExecutor(2) as readers:
        readers.submit(read_ahead, (known.client, known.serving), answers)
        # The host name may have changed since; the Node's name has not.
        reading = readers.submit(configprocess.load, config_file, known.node_name, answers)
        with collector.paused():
            from thunderfleet_kubelet import app
    config = reading.result()
    answers.save()
    identity = identities.usable_identity(root, None, config.node_name)
    if identity is None:
        raise JoinError(
            f"{known.client} has expired, is missing or is not for node {config.node_name}; {join_again(config.node_name)}"
        )
    with only_one(root):
        await app.run(root, identity, config, adopted)


def _run_next(arguments: argparse.Namespace) -> None:
    """Replaces this process by the kubelet, which frees the memory that only joining needed."""
    words = ["run", "--root", str(arguments.root), "--log-level", arguments.log_level, "--log-format", arguments.log_format]
    for option in ("config", "log_file"):
        if value := getattr(arguments, option):
            words += [f"--{option.replace('_', '-')}", str(value)]
    logging.shutdown()
    sys.stdout.flush()
    # The interpreter with its options, and the program.
    os.execv(sys.executable, [*sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1], *words])


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 success, 1 failure, 2 invalid command line or configuration."""
    arguments = parser().parse_args(argv)
    if arguments.command == "launchd-plist":
        from thunderfleet_kubelet import configfile
        from thunderfleet_kubelet.config import ConfigError

        program = shutil.which("thunderfleet-kubelet") or os.path.abspath(sys.argv[0])
        config = arguments.config.resolve() if arguments.config else None
        try:
            # The configuration file may be written after the property list.
            known = configfile.load(config if config is not None and config.exists() else None)
        except ConfigError as error:
            print(f"thunderfleet-kubelet: {error}", file=sys.stderr)
            return 2
        files = (arguments.root.resolve(), config, arguments.log_file.absolute())
        sys.stdout.write(plist(program, *files, arguments.log_level, known.shutdown_grace_period_seconds).decode())
        return 0
    try:
        # A join that does not run the kubelet prints for people, also when `thunderfleet join` shows its output.
        form = logs.Format.TEXT if getattr(arguments, "no_run", False) else arguments.log_format
        set_up_logging(arguments.log_level, arguments.log_file, form)
    except OSError as error:
        print(f"thunderfleet-kubelet: cannot write the log to {arguments.log_file}: {error.strerror}", file=sys.stderr)
        return 1
    # Pods wait for a kubelet that runs, and while a Mac boots, everything starts at once.
    with priority.preferred(arguments.command == "run") as adopted:
        return _done(arguments, adopted)


def _done(arguments: argparse.Namespace, adopted: Callable[[], None]) -> int:
    """The exit code of ``join`` and ``run``."""
    # Imported late, so that --help is fast.
    with collector.paused():
        authorities.import_aiohttp()
        from thunderfleet_lib.kube import ApiError

        from thunderfleet_kubelet.bootstrap.certificates import CertificateError
        from thunderfleet_kubelet.bootstrap.errors import JoinError, UsageError
        from thunderfleet_kubelet.config import ConfigError

    try:
        if arguments.command == "run":
            asyncio.run(_run(arguments, adopted))
        elif asyncio.run(_join(arguments)):
            _run_next(arguments)
    except (ConfigError, UsageError) as error:
        print(f"thunderfleet-kubelet: {error}", file=sys.stderr)
        return 2
    except (JoinError, CertificateError, ApiError, OSError) as error:
        print(f"thunderfleet-kubelet: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

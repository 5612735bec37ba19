"""``thunderfleet-runner``: ``serve`` is what a runner pod runs; ``size`` and ``capabilities`` answer the agent's questions.

The latter two need MLX and import it themselves, when they are asked for: ``serve`` must stay free of it.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import ssl
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from thunderfleet_crds.group import TERMINATION_LOG, LastWords
from thunderfleet_crds.plan import API_KEY_FOLDER, KEYS_FOLDER, PLAN_FOLDER, PLAN_KEY, Plan
from thunderfleet_lib.sandbox import mounted

log = logging.getLogger(__name__)


def _world_sizes(text: str) -> range:
    first, _, last = text.partition("-")
    try:
        sizes = range(int(first), int(last or first) + 1)
    except ValueError:
        sizes = range(0)
    if not sizes or sizes[0] < 1 or sizes[-1] > 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of world sizes: say 2 or 1-16, from 1 to 64")
    return sizes


def _parser() -> argparse.ArgumentParser:
    shown = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(
        prog="thunderfleet-runner", description="One pod of a served model.", formatter_class=shown
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"), help="least level logged")
    commands = parser.add_subparsers(dest="command", required=True)

    serve = commands.add_parser("serve", help="supervise this pod's rank of the plan", formatter_class=shown)
    serve.add_argument("--plan", type=Path, default=mounted(PLAN_FOLDER) / PLAN_KEY, help="the group's plan")
    serve.add_argument("--keys", type=Path, default=mounted(KEYS_FOLDER), help="folder with tls.crt and tls.key")
    serve.add_argument("--api-keys", type=Path, default=mounted(API_KEY_FOLDER), help="folder with accepted API keys, if any")
    serve.add_argument("--pod", default=os.environ.get("POD_NAME"), help="this pod's name ($POD_NAME)")
    serve.add_argument("--node", default=os.environ.get("NODE_NAME"), help="this node's name ($NODE_NAME)")
    serve.add_argument(
        "--state-folder", type=Path, default=Path(tempfile.gettempdir()) / "thunderfleet-runner", help="own files"
    )

    serve.add_argument(
        "--jaccl-environment",
        action="store_true",
        default=os.environ.get("THUNDERFLEET_JACCL_ENVIRONMENT", "") not in ("", "0"),
        help="let JACCL do its own exchange on a port of rank 0, for an MLX whose all_gather_factory is broken; what rank 0 is "
        "told holds for its group ($THUNDERFLEET_JACCL_ENVIRONMENT)",
    )

    size = commands.add_parser("size", help="what a model needs, per world size", formatter_class=shown)
    size.add_argument("path", type=Path, help="the model's folder")
    size.add_argument("--world-sizes", type=_world_sizes, default="1-16", help="a number or a range")
    size.add_argument("-o", "--output", choices=("json",), default="json", help="format")

    capabilities = commands.add_parser("capabilities", help="what this runner's MLX can do", formatter_class=shown)
    capabilities.add_argument("-o", "--output", choices=("json",), default="json", help="format")
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    from thunderfleet_runner.supervisor import Blocked, Settings, api_keys, serve

    if not arguments.pod or not arguments.node:
        log.error("--pod and --node (or POD_NAME and NODE_NAME) must name this pod and its node")
        return 2
    try:
        plan = Plan.model_validate_json(arguments.plan.read_text(encoding="utf-8"))
        settings = Settings(
            plan=plan,
            pod=arguments.pod,
            node=arguments.node,
            keys_folder=arguments.keys,
            state_folder=arguments.state_folder / f"{plan.uid}-{plan.index}-{arguments.pod}",
            api_keys=api_keys(arguments.api_keys),
            jaccl_environment=arguments.jaccl_environment,
        )
        settings.check()
    except ValidationError as error:
        log.error("%s is no plan: %s", arguments.plan, " ".join(str(error).split()))
        return 2
    except (OSError, ValueError) as error:
        log.error("%s", error)
        return 2
    try:
        asyncio.run(serve(settings))
    except ssl.SSLError as error:
        log.error("the keys in %s cannot be used: %s", arguments.keys, error)
        return 2
    except Blocked as error:
        log.error("%s", error)
        _leave(LastWords(error.fault.fault, error.fault.reason, error.fault.message))
        return 1
    except OSError as error:
        log.error("%s", error)
        return 1
    return 0


def _leave(words: LastWords) -> None:
    """Last words, for the pod's status; by hand there is no such file, and none is made."""
    path = mounted(TERMINATION_LOG)
    with contextlib.suppress(OSError):
        if path.is_file():
            path.write_text(words.text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """The program. Returns its exit code: 0 ok, 1 failure, 2 bad usage or input."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr,
        level=arguments.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    match arguments.command:
        case "serve":
            return _serve(arguments)
        case "size":
            from thunderfleet_runner.sizing import command

            return command.main(arguments.path, tuple(arguments.world_sizes))
        case _:
            from thunderfleet_runner.rank import capabilities

            return capabilities.main()


if __name__ == "__main__":
    sys.exit(main())

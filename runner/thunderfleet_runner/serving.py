"""The command ``serve``: reads the plan, runs the supervisor, and leaves its last words."""

import argparse
import asyncio
import contextlib
import logging
import ssl

from pydantic import ValidationError
from thunderfleet_crds.exchange.group import TERMINATION_LOG, LastWords
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_lib import logs
from thunderfleet_lib.host.sandbox import mounted

from thunderfleet_runner.faults import Fault
from thunderfleet_runner.supervisor import Blocked, SupervisorSettings, api_keys, serve

log = logging.getLogger(__name__)


def main(arguments: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code: 0 success, 1 failure, 2 invalid usage or input."""
    if not arguments.pod or not arguments.node:
        log.error("set --pod and --node (or POD_NAME and NODE_NAME) to this pod and its node")
        return 2
    try:
        plan = Plan.model_validate_json(arguments.plan.read_text(encoding="utf-8"))
        settings = SupervisorSettings(
            plan=plan,
            pod=arguments.pod,
            node=arguments.node,
            keys_folder=arguments.keys,
            state_folder=arguments.state_folder / f"{plan.uid}-{plan.index}-{arguments.pod}",
            api_keys=api_keys(arguments.api_keys),
            jaccl_environment=arguments.jaccl_environment,
        )
        logs.always(
            namespace=plan.namespace,
            deployment=plan.deployment,
            group=plan.index,
            epoch=plan.epoch,
            rank=settings.rank,
            node=arguments.node,
            pod=arguments.pod,
        )
        settings.check()
    except ValidationError as error:
        log.error("%s is not a valid plan: %s", arguments.plan, " ".join(str(error).split()))
        return 2
    except Blocked as error:
        return _blocked(error.fault)
    except (OSError, ValueError) as error:
        log.error("%s", error)
        return 2
    try:
        asyncio.run(serve(settings))
    except ssl.SSLError as error:
        log.error("cannot use the keys in %s: %s", arguments.keys, error)
        return 2
    except Blocked as error:
        return _blocked(error.fault)
    except OSError as error:
        log.error("%s", error)
        return 1
    return 0


def _blocked(fault: Fault) -> int:
    log.error("%s", fault.message)
    _write_termination_message(LastWords(fault.fault, fault.reason, fault.message))
    return 1


def _write_termination_message(words: LastWords) -> None:
    """Writes the pod's termination message; outside a pod there is no such file, and none is created."""
    path = mounted(TERMINATION_LOG)
    with contextlib.suppress(OSError):
        if path.is_file():
            path.write_text(words.text, encoding="utf-8")

"""Runs ``thunderfleet-operator plan``."""

import argparse
import sys
from datetime import UTC, datetime

from thunderfleet_operator.decide.placing.ports import PortSettings
from thunderfleet_operator.placement.units import one_line
from thunderfleet_operator.plan_cli.cluster import read_cluster
from thunderfleet_operator.plan_cli.hypothetical import NewCable, judge_links, plug_in, without
from thunderfleet_operator.plan_cli.read import STDIN, BadInput, read_deployment, read_fleet
from thunderfleet_operator.plan_cli.render import render
from thunderfleet_operator.plan_cli.report import report, schema
from thunderfleet_operator.plan_cli.simulate import plan_groups

MAX_RUNNERS_UP = 100
MAX_ERROR = 800
"""Characters."""


def now() -> datetime:
    """The time that the plan assumes. It decides which waits and quarantines are over."""
    return datetime.now(UTC)


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan; returns the exit status."""
    if arguments.schema:
        print(schema())
        return 0
    try:
        status, text = _plan(arguments)
    except BadInput as error:
        print(f"thunderfleet-operator plan: {_short(str(error))}", file=sys.stderr)
        return 2
    print(text)
    return status


def _short(error: str) -> str:
    """Shortens and cleans an error that quotes a file, which may contain any text."""
    text = one_line(error)
    return text if len(text) <= MAX_ERROR else f"{text[: MAX_ERROR - 1]}…"


def _plan(arguments: argparse.Namespace) -> tuple[int, str]:
    if (arguments.fleet is None) == (arguments.context is None):
        raise BadInput("set one of --fleet FILE and --context NAME")
    if arguments.deployment is None:
        raise BadInput("--deployment FILE is required")
    if arguments.fleet == arguments.deployment == STDIN:
        raise BadInput("only one of --fleet and --deployment can be -")
    if not 0 <= arguments.runners_up <= MAX_RUNNERS_UP:
        raise BadInput(f"--runners-up: must be from 0 to {MAX_RUNNERS_UP}, not {arguments.runners_up}")
    cache = read_fleet(arguments.fleet) if arguments.fleet is not None else read_cluster(arguments.context)
    without(cache, arguments.without)
    for text in arguments.what_if:
        plug_in(cache, NewCable.parse(text))
    judge_links(cache, now())
    deployment = read_deployment(arguments.deployment, cache)
    settings = PortSettings(arguments.ports, arguments.ring_ports)
    found = report(cache, deployment, plan_groups(cache, deployment, settings, arguments.runners_up, now()))
    return (0 if found.placed else 3), render(found, arguments.output)

"""The arguments of ``thunderfleet-operator plan``. Imports nothing else of the program, so that ``--help`` stays fast."""

import argparse
from collections.abc import Callable
from pathlib import Path


def add_arguments(plan: argparse.ArgumentParser, port_range: Callable[[str], object]) -> None:
    """Adds the arguments; ``port_range`` parses a range of ports."""
    plan.description = "Plan a ModelDeployment as the operator would, on the fleet that a file describes or that a cluster has."
    plan.epilog = (
        "exit status: 0 every group has a placement, 3 a group has none, 2 invalid input. A group that runs stays where it is "
        "unless the spec has changed or it has lost a Mac or a cable; one that has failed is planned as after its back-off. "
        "Only the running operator has a record of interrupted cables, so plan may use cables that the operator avoids."
    )
    plan.add_argument(
        "--fleet",
        type=Path,
        metavar="FILE",
        help="output of `kubectl get nodes,np,tbl,md,mc,pods -A -o yaml`, or - for stdin; may be edited. Cables and RDMA "
        "connections of other groups are estimated, unless the file has their plans too (add configmaps after pods)",
    )
    plan.add_argument(
        "--context",
        metavar="NAME",
        help="instead of --fleet: read the fleet from the cluster of this context in $KUBECONFIG or ~/.kube/config",
    )
    plan.add_argument("--deployment", type=Path, metavar="FILE", help="file with one ModelDeployment; - is stdin")
    plan.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="CHANGE",
        help="plan as if this cable were plugged in, such as 'cable studio-1:1 studio-2:1 80' (Mac:port, Gb/s); it replaces "
        "the cables in these ports; may be repeated",
    )
    plan.add_argument("--without", action="append", default=[], metavar="MAC", help="plan without this Mac; may be repeated")
    plan.add_argument(
        "-o",
        "--output",
        default="table",
        choices=("table", "json", "yaml"),
        help="format; --schema describes json and yaml",
    )
    plan.add_argument("--runners-up", type=int, default=3, metavar="N", help="number of next-best placements to print")
    plan.add_argument(
        "--ports",
        type=port_range,
        default="20000-20999",
        help="ports of each Mac for the HTTP endpoints of groups and for connections among their pods, as for run",
    )
    plan.add_argument(
        "--ring-ports",
        type=port_range,
        default="21000-29999",
        help="ports of each Mac for the connections that MLX opens among ranks, as for run",
    )
    plan.add_argument("--schema", action="store_true", help="print the JSON Schema of the output and exit")

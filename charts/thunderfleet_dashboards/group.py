"""The ranks of a group."""

from thunderfleet_dashboards.panels import Page, Query, Row, Shown
from thunderfleet_dashboards.queries import OBJECT, OF_A_RUNNER, RUNNER, latest, rate, total

RANK = ("namespace", "deployment", "group", "rank")
OF = ("namespace", "deployment", "group")
PHASE = latest("thunderfleet_runner_phase", RUNNER, *RANK, "phase")
NAME = "{{namespace}}/{{deployment}} group {{group}}"
SAMPLED = ("namespace", "deployment", "group", "rank", "node")


def _loaded(part: str) -> str:
    return latest(f"thunderfleet_runner_rank_{part}", RUNNER, *SAMPLED)


PAGE = Page(
    "thunderfleet-group",
    "Thunderfleet / Group",
    "The ranks of groups: loading, memory, heartbeats, failures.",
    (
        Row(
            "State",
            (
                Shown(
                    "Phase",
                    "The phase that each rank's supervisor reports.",
                    (
                        Query(
                            PHASE + " == 1",
                            f"{NAME} rank {{{{rank}}}} {{{{phase}}}}",
                        ),
                    ),
                    kind="table",
                ),
                Shown(
                    "Attempts",
                    "Attempts to form the group since it was placed.",
                    (Query(latest("thunderfleet_runner_attempts", RUNNER, *OF), NAME),),
                    warn=3,
                    bad=6,
                ),
                Shown(
                    "Recoveries",
                    "Times the group recovered from a failure since it was placed.",
                    (Query(latest("thunderfleet_runner_recoveries", RUNNER, *OF), NAME),),
                    warn=1,
                ),
                Shown(
                    "Failures",
                    "Failures since the pods started, by class and reason of the first cause. Empty if no group has failed.",
                    (
                        Query(
                            total("thunderfleet_runner_failures_total", RUNNER, OF_A_RUNNER, "fault", "reason"),
                            "{{fault}} {{reason}}",
                        ),
                    ),
                    bad=1,
                    quiet=True,
                ),
                Shown(
                    "Heartbeat age",
                    "Seconds since the process of a rank last sent a message.",
                    (Query(latest("thunderfleet_runner_heartbeat_age_seconds", RUNNER, *RANK), f"{NAME} rank {{{{rank}}}}"),),
                    unit="s",
                    warn=5,
                    bad=15,
                ),
                Shown(
                    "Exits of the intake",
                    "Exits of the process that reads requests, by cause.",
                    (
                        Query(
                            rate("thunderfleet_runner_intake_ends_total", RUNNER, OF_A_RUNNER, "cause", how="increase"),
                            "{{cause}}",
                        ),
                    ),
                    warn=1,
                ),
            ),
        ),
        Row(
            "Weights and memory",
            (
                Shown(
                    "Loaded",
                    "Share of a rank's weights that is loaded.",
                    (Query(f"{_loaded('loaded_bytes')} / ({_loaded('total_bytes')} > 0)", "rank {{rank}} on {{node}}"),),
                    unit="percentunit",
                    width=6,
                ),
                Shown(
                    "Weights",
                    "Bytes of weights that a rank has loaded.",
                    (Query(_loaded("loaded_bytes"), "rank {{rank}} on {{node}}"),),
                    unit="bytes",
                    width=6,
                ),
                Shown(
                    "Layers",
                    "Layers that a rank has loaded.",
                    (Query(_loaded("loaded_layers"), "rank {{rank}} on {{node}}"),),
                    width=6,
                ),
                Shown(
                    "Peak memory",
                    "Peak memory of a rank's process, as MLX counts it.",
                    (Query(_loaded("peak_memory_bytes"), "rank {{rank}} on {{node}}"),),
                    unit="bytes",
                    width=6,
                ),
                Shown(
                    "Reserved on Macs",
                    "GPU memory that groups have reserved on all Macs.",
                    (Query(latest("thunderfleet_mac_gpu_memory_reserved_bytes", 'cluster=~"$cluster"', "node"), "{{node}}"),),
                    unit="bytes",
                    width=12,
                ),
                Shown(
                    "Restarts",
                    "Restarts that count against the budget, and the budget.",
                    (
                        Query(
                            latest("thunderfleet_modeldeployment_group_restarts", OBJECT, "namespace", "name", "group"),
                            "{{namespace}}/{{name}} group {{group}}",
                        ),
                        Query(
                            latest("thunderfleet_modeldeployment_group_max_restarts", OBJECT, "namespace", "name"),
                            "{{namespace}}/{{name}} budget",
                        ),
                    ),
                    width=12,
                ),
            ),
        ),
    ),
    ("namespace", "deployment"),
)

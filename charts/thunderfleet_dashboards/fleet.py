"""All Macs and ModelDeployments at a glance."""

from thunderfleet_dashboards.panels import Page, Query, Row, Shown, link_to
from thunderfleet_dashboards.queries import CLUSTER, NODE, OBJECT, OF_A_RUNNER, RUNNER, latest, rate, ratio, since

READY = latest("thunderfleet_modeldeployment_ready_replicas", OBJECT, "namespace", "name")
WANTED = latest("thunderfleet_modeldeployment_replicas", OBJECT, "namespace", "name")
RESERVED = latest("thunderfleet_mac_gpu_memory_reserved_bytes", NODE, "node")
LIMIT = latest("thunderfleet_mac_gpu_memory_limit_bytes", NODE, "node")
FREE = latest("thunderfleet_mac_disk_free_bytes", NODE, "node")
CONDITION = "thunderfleet_mac_condition"
MACS = latest("thunderfleet_mac_ready", NODE, "node")
CONNECTED = latest("thunderfleet_thunderboltlink_condition", CLUSTER + ', type="Connected"', "name")
DOWN = f"count({CONNECTED} == 0) or vector(0)"

PAGE = Page(
    "thunderfleet-fleet",
    "Thunderfleet / Fleet",
    "Which ModelDeployments, Macs and cables have a problem.",
    (
        Row(
            "Now",
            (
                Shown(
                    "Groups that serve",
                    "Groups that are Ready, of all ModelDeployments.",
                    (Query(f"sum({READY})", ""),),
                    kind="number",
                    width=4,
                    warn=1,
                    bad=1,
                    low=True,
                ),
                Shown(
                    "Groups missing",
                    "Groups that ModelDeployments require and that do not serve.",
                    (Query(f"sum({WANTED} - {READY})", ""),),
                    kind="number",
                    width=4,
                    warn=1,
                    bad=2,
                ),
                Shown(
                    "Macs Ready",
                    "Macs whose Node is Ready.",
                    (Query(f"sum({MACS})", ""),),
                    kind="number",
                    width=4,
                    warn=1,
                    bad=1,
                    low=True,
                ),
                Shown(
                    "Macs not Ready",
                    "Macs whose Node is not Ready.",
                    (Query(f"count({MACS} == 0) or vector(0)", ""),),
                    kind="number",
                    width=4,
                    warn=1,
                    bad=2,
                ),
                Shown(
                    "Cables down",
                    "ThunderboltLinks that do not connect their Macs.",
                    (
                        Query(
                            DOWN,
                            "",
                        ),
                    ),
                    kind="number",
                    width=4,
                    warn=1,
                    bad=2,
                ),
                Shown(
                    "Tokens per second",
                    "Tokens that all groups generate for clients.",
                    (Query(rate("thunderfleet_runner_generated_tokens_total", RUNNER, OF_A_RUNNER), ""),),
                    kind="number",
                    width=4,
                    unit="cps",
                ),
            ),
        ),
        Row(
            "ModelDeployments",
            (
                Shown(
                    "Groups that serve",
                    "Groups that are Ready. A click opens the ModelDeployment.",
                    (Query(READY, "{{namespace}}/{{name}}"),),
                    links=(link_to("thunderfleet-deployment", "deployment", "name"),),
                ),
                Shown(
                    "Not Ready since",
                    "How long a ModelDeployment has not been Ready. Empty while all are.",
                    (
                        Query(
                            since(
                                latest("thunderfleet_modeldeployment_not_ready_timestamp_seconds", OBJECT, "namespace", "name")
                            ),
                            "{{namespace}}/{{name}}",
                        ),
                    ),
                    unit="s",
                    warn=60,
                    bad=900,
                    quiet=True,
                    links=(link_to("thunderfleet-deployment", "deployment", "name"),),
                ),
                Shown(
                    "Tokens per second",
                    "Tokens that groups generate for clients.",
                    (
                        Query(
                            rate("thunderfleet_runner_generated_tokens_total", RUNNER, OF_A_RUNNER, "namespace", "deployment"),
                            "{{namespace}}/{{deployment}}",
                        ),
                    ),
                    unit="cps",
                    links=(link_to("thunderfleet-deployment", "deployment", "deployment"),),
                ),
            ),
        ),
        Row(
            "Macs",
            (
                Shown(
                    "Conditions that are not True",
                    "Conditions of NodeProfiles that are False or Unknown, with their reasons; "
                    "Quarantined is left out. Empty while nothing is wrong.",
                    (
                        Query(
                            latest(CONDITION, NODE + ', type!="Quarantined"', "node", "type", "reason") + " < 1",
                            "{{node}} {{type}} {{reason}}",
                        ),
                    ),
                    kind="table",
                    width=12,
                    quiet=True,
                ),
                Shown(
                    "Quarantined",
                    "Macs on which no group is placed until they reboot. Empty while there is none.",
                    (
                        Query(
                            latest(CONDITION, NODE + ', type="Quarantined"', "node", "reason") + " == 1", "{{node}} {{reason}}"
                        ),
                    ),
                    kind="table",
                    width=12,
                    quiet=True,
                ),
                Shown(
                    "GPU memory reserved",
                    "GPU memory that groups have reserved, as a share of what the GPU of the Mac may use.",
                    (
                        Query(
                            ratio(
                                latest("thunderfleet_mac_gpu_memory_reserved_bytes", NODE, "node"),
                                latest("thunderfleet_mac_gpu_memory_limit_bytes", NODE, "node"),
                            ),
                            "{{node}}",
                        ),
                    ),
                    unit="percentunit",
                    warn=0.9,
                    bad=1.0,
                ),
                Shown(
                    "Groups",
                    "Groups that are placed on the Mac.",
                    (Query(latest("thunderfleet_mac_groups", NODE, "node"), "{{node}}"),),
                ),
                Shown(
                    "Wired memory",
                    "Memory that macOS cannot page out; weights and caches of groups are in it.",
                    (Query(latest("thunderfleet_mac_wired_memory_bytes", NODE, "node"), "{{node}}"),),
                    unit="bytes",
                ),
                Shown(
                    "GPU use",
                    "Fraction of the time in which the GPU is busy. Needs macmon, ioreg or powermetrics.",
                    (Query(latest("thunderfleet_mac_gpu_utilization_ratio", NODE, "node"), "{{node}}"),),
                    unit="percentunit",
                ),
                Shown(
                    "Power",
                    "Power of the Mac's parts. Needs macmon or powermetrics.",
                    (Query(latest("thunderfleet_mac_power_watts", NODE, "node", "part"), "{{node}} {{part}}"),),
                    unit="watt",
                ),
                Shown(
                    "Temperature",
                    "Mean temperature of CPU and GPU. Needs macmon.",
                    (Query(latest("thunderfleet_mac_temperature_celsius", NODE, "node", "part"), "{{node}} {{part}}"),),
                    unit="celsius",
                    warn=90,
                    bad=100,
                ),
                Shown(
                    "Disk free",
                    "Free space of the volume with the models.",
                    (
                        Query(
                            ratio(
                                latest("thunderfleet_mac_disk_free_bytes", NODE, "node"),
                                latest("thunderfleet_mac_disk_size_bytes", NODE, "node"),
                            ),
                            "{{node}}",
                        ),
                    ),
                    unit="percentunit",
                    warn=0.05,
                    bad=0.1,
                    low=True,
                ),
                Shown(
                    "Thermal pressure",
                    "1 for the level that macOS reports, if it is not Nominal. Needs powermetrics, "
                    "which only root may run. Empty while no Mac is too hot.",
                    (
                        Query(
                            latest("thunderfleet_mac_thermal_pressure", NODE + ', level!="Nominal"', "node", "level"),
                            "{{node}} {{level}}",
                        ),
                    ),
                    warn=1,
                    quiet=True,
                ),
                Shown(
                    "Last kernel panic",
                    "Time since the last kernel panic. Empty if there was none.",
                    (Query(since(latest("thunderfleet_mac_last_panic_timestamp_seconds", NODE, "node")), "{{node}}"),),
                    unit="s",
                    quiet=True,
                ),
            ),
        ),
    ),
    ("namespace", "deployment", "node"),
)

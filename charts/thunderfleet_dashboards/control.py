"""Operator, agents and kubelets: whether they work, and what they cost."""

from thunderfleet_dashboards.panels import Page, Query, Row, Shown
from thunderfleet_dashboards.queries import CLUSTER, OF_A_TARGET, latest, quantile, rate, since, total

OPERATOR = "thunderfleet_operator"
AGENT = "thunderfleet_agent"
KUBELET = "thunderfleet_kubelet"
GROUPS = f"max by (cluster, instance, state) ({OPERATOR}_groups{{{CLUSTER}}})"
BUILDS = f"max by (cluster, instance, program, version) (thunderfleet_build_info{{{CLUSTER}}})"
LEADING = f"max by (cluster, instance) ({OPERATOR}_leading{{{CLUSTER}}})"

PAGE = Page(
    "thunderfleet-control",
    "Thunderfleet / Operator and control plane",
    "Operator, agents and kubelets: errors, load, versions, CPU and memory.",
    (
        Row(
            "Operator",
            (
                Shown(
                    "Leaders",
                    "Replicas of the operator that are the leader. Must be 1.",
                    (Query(f"sum({LEADING})", ""),),
                    kind="number",
                    width=4,
                    warn=1,
                    bad=1,
                    low=True,
                ),
                Shown(
                    "Work queue",
                    "Objects that wait to be reconciled.",
                    (Query(f"max({OPERATOR}_queue_depth{{{CLUSTER}}})", ""),),
                    kind="number",
                    width=4,
                    warn=100,
                    bad=1000,
                ),
                Shown(
                    "Groups by state",
                    "Groups of all ModelDeployments, as the leader counts them.",
                    (
                        Query(
                            f"sum by (cluster, state) ({GROUPS} * on (cluster, instance) group_left () {LEADING})",
                            "{{state}}",
                        ),
                    ),
                    width=8,
                ),
                Shown(
                    "Reconciles",
                    "Reconciles per second, by kind and result.",
                    (
                        Query(
                            rate(f"{OPERATOR}_reconciles_total", CLUSTER, OF_A_TARGET, "kind", "result"), "{{kind}} {{result}}"
                        ),
                    ),
                    unit="ops",
                ),
                Shown(
                    "Reconcile errors",
                    "Reconciles per second that failed and are retried.",
                    (Query(rate(f"{OPERATOR}_reconcile_errors_total", CLUSTER, OF_A_TARGET, "kind"), "{{kind}}"),),
                    unit="ops",
                    bad=0.01,
                ),
                Shown(
                    "Duration of a reconcile",
                    "95 % of the reconciles are faster.",
                    (
                        Query(
                            quantile(0.95, f"{OPERATOR}_reconcile_duration_seconds", CLUSTER, OF_A_TARGET, "kind"), "{{kind}}"
                        ),
                    ),
                    unit="s",
                    warn=1,
                    bad=5,
                ),
                Shown(
                    "Writes of the operator",
                    "Write requests to the API server per second. Zero while nothing changes.",
                    (
                        Query(
                            rate(f"{OPERATOR}_api_writes_total", CLUSTER, OF_A_TARGET, "resource", "verb"),
                            "{{verb}} {{resource}}",
                        ),
                    ),
                    unit="reqps",
                ),
                Shown(
                    "Placements",
                    "Placements in the last hour, by transport.",
                    (
                        Query(
                            rate(f"{OPERATOR}_placements_total", CLUSTER, OF_A_TARGET, "transport", over="1h", how="increase"),
                            "{{transport}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Agents",
            (
                Shown(
                    "Since the last publishing round",
                    "Seconds since an agent last published the state of its Mac.",
                    (Query(since(latest(f"{AGENT}_published_timestamp_seconds", CLUSTER, "instance")), "{{instance}}"),),
                    unit="s",
                    warn=300,
                    bad=600,
                ),
                Shown(
                    "Failures of commands",
                    "Commands of agents that failed in the last hour. Empty if none has.",
                    (
                        Query(
                            rate(
                                f"{AGENT}_command_failures_total",
                                CLUSTER,
                                OF_A_TARGET,
                                "source",
                                "kind",
                                over="1h",
                                how="increase",
                            ),
                            "{{source}} {{kind}}",
                        ),
                    ),
                    warn=1,
                    quiet=True,
                ),
                Shown(
                    "Duration of commands",
                    "95 % of the commands of agents are faster.",
                    (Query(quantile(0.95, f"{AGENT}_command_seconds", CLUSTER, OF_A_TARGET, "source"), "{{source}}"),),
                    unit="s",
                    warn=5,
                    bad=20,
                ),
                Shown(
                    "Writes of agents",
                    "Writes to the API server per second. Zero while nothing changes. Empty if nothing was ever written.",
                    (Query(rate(f"{AGENT}_api_writes_total", CLUSTER, OF_A_TARGET, "kind", "result"), "{{kind}} {{result}}"),),
                    unit="reqps",
                ),
                Shown(
                    "Internal errors",
                    "Errors of agents in the last hour, by loop.",
                    (
                        Query(
                            rate(f"{AGENT}_loop_errors_total", CLUSTER, OF_A_TARGET, "loop", over="1h", how="increase"),
                            "{{loop}}",
                        ),
                    ),
                    bad=1,
                ),
                Shown(
                    "Copies of weights",
                    "Bytes per second that agents receive from other Macs, by way, and send. "
                    "Received is empty until a model has been copied.",
                    (
                        Query(rate(f"{AGENT}_copy_received_bytes_total", CLUSTER, OF_A_TARGET, "way"), "received over {{way}}"),
                        Query(rate(f"{AGENT}_copy_sent_bytes_total", CLUSTER, OF_A_TARGET), "sent"),
                    ),
                    unit="Bps",
                    quiet=True,
                ),
                Shown(
                    "Wrong bytes",
                    "Transfers in which a Mac sent wrong bytes, since the agents that received them started. Empty if there "
                    "was none.",
                    (Query(total(f"{AGENT}_copy_wrong_bytes_total", CLUSTER, OF_A_TARGET, "node"), "{{node}}"),),
                    bad=1,
                    quiet=True,
                ),
                Shown(
                    "Models on disk",
                    "Number of models that each agent finds on the disk of its Mac.",
                    (Query(latest(f"{AGENT}_models", CLUSTER, "instance"), "{{instance}}"),),
                ),
                Shown(
                    "Round trips",
                    "Round-trip times between agents.",
                    (
                        Query(
                            latest(f"{AGENT}_peer_rtt_seconds", CLUSTER, "instance", "node", "address"),
                            "{{instance}} → {{node}} {{address}}",
                        ),
                    ),
                    unit="s",
                ),
            ),
        ),
        Row(
            "Kubelets",
            (
                Shown(
                    "Registered",
                    "1 while the Node of a kubelet is registered.",
                    (Query(latest(f"{KUBELET}_node_registered", CLUSTER, "instance"), "{{instance}}"),),
                    bad=1,
                    low=True,
                ),
                Shown(
                    "Pods and containers",
                    "Pods and containers on all Macs.",
                    (
                        Query(total(f"{KUBELET}_pods", CLUSTER, OF_A_TARGET), "pods"),
                        Query(total(f"{KUBELET}_containers", CLUSTER, OF_A_TARGET), "containers"),
                    ),
                ),
                Shown(
                    "Restarts of containers",
                    "Restarts in the last hour.",
                    (
                        Query(
                            rate(
                                f"{KUBELET}_container_restarts_total",
                                CLUSTER,
                                OF_A_TARGET,
                                "instance",
                                over="1h",
                                how="increase",
                            ),
                            "{{instance}}",
                        ),
                    ),
                    warn=1,
                    bad=5,
                ),
                Shown(
                    "Certificates expire in",
                    "Time until a certificate of a kubelet or a control plane expires. Kubelets renew theirs before that; "
                    "those of the control plane of a Mac are renewed by `sudo thunderfleet init`.",
                    (
                        Query(
                            latest(f"{KUBELET}_certificate_expiry_seconds", CLUSTER, "instance", "name")
                            + " - time() or "
                            + latest("thunderfleet_control_plane_certificate_expiry_seconds", CLUSTER, "instance", "name")
                            + " - time()",
                            "{{instance}} {{name}}",
                        ),
                    ),
                    unit="s",
                    warn=86400,
                    bad=172800,
                    low=True,
                ),
                Shown(
                    "Requests to API servers",
                    "Requests of kubelets per second, and how many of them write.",
                    (
                        Query(rate(f"{KUBELET}_api_requests_total", CLUSTER, OF_A_TARGET), "all"),
                        Query(rate(f"{KUBELET}_api_writes_total", CLUSTER, OF_A_TARGET), "writes"),
                    ),
                    unit="reqps",
                ),
            ),
        ),
        Row(
            "Programs",
            (
                Shown(
                    "Versions",
                    "Processes by program and version.",
                    (
                        Query(
                            f"count by (program, version) ({BUILDS})",
                            "{{program}} {{version}}",
                        ),
                    ),
                    kind="table",
                ),
                Shown(
                    "CPU",
                    "CPU time of programs per second. Ranks are not included; the path /metrics/resource of "
                    "kubelets has the CPU time of their containers.",
                    (Query(rate("thunderfleet_process_cpu_seconds_total", CLUSTER, OF_A_TARGET, "program"), "{{program}}"),),
                    unit="percentunit",
                ),
                Shown(
                    "Memory",
                    "Resident memory of the largest process of each program.",
                    (Query(f"max by (program) (thunderfleet_process_resident_memory_bytes{{{CLUSTER}}})", "{{program}}"),),
                    unit="bytes",
                ),
            ),
        ),
    ),
)

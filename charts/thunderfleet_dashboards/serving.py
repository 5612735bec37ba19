"""Requests against an objective: availability, latency, work of the routers."""

from thunderfleet_dashboards.panels import Page, Query, Row, Shown
from thunderfleet_dashboards.queries import CLUSTER, OF_A_RUNNER, OF_A_TARGET, RUNNER, quantile, rate, ratio, total

REQUESTS = "thunderfleet_runner_requests_total"
FIRST = "thunderfleet_runner_time_to_first_token_seconds"
ROUTER = "thunderfleet_router"
SOON = rate(f"{FIRST}_bucket", RUNNER + ', le="10.0"', OF_A_RUNNER, "namespace", "deployment", over="1h")
ALL = rate(f"{FIRST}_count", RUNNER, OF_A_RUNNER, "namespace", "deployment", over="1h")


def _share(over: str) -> str:
    good = rate(REQUESTS, RUNNER + ', code!~"5.."', OF_A_RUNNER, "namespace", "deployment", over=over)
    return ratio(good, rate(REQUESTS, RUNNER, OF_A_RUNNER, "namespace", "deployment", over=over))


PAGE = Page(
    "thunderfleet-serving",
    "Thunderfleet / Serving",
    "Service level: share of requests that succeed, and how long clients wait.",
    (
        Row(
            "Objective",
            (
                Shown(
                    "Requests that succeed",
                    "Share of requests with a status below 500, in the last hour. An alert fires if it is below 95 % "
                    "for 10 minutes.",
                    (Query(_share("1h"), "{{namespace}}/{{deployment}}"),),
                    unit="percentunit",
                    warn=0.95,
                    bad=0.99,
                    low=True,
                ),
                Shown(
                    "First token in 10 s",
                    "Share of requests whose first token came within 10 s.",
                    (
                        Query(
                            ratio(SOON, f"({ALL} > 0)"),
                            "{{namespace}}/{{deployment}}",
                        ),
                    ),
                    unit="percentunit",
                    warn=0.9,
                    bad=0.99,
                    low=True,
                ),
                Shown(
                    "Failed requests",
                    "Requests per second with a status of 500 or above. Empty if there was none.",
                    (
                        Query(
                            rate(REQUESTS, RUNNER + ', code=~"5.."', OF_A_RUNNER, "namespace", "deployment", "code"),
                            "{{namespace}}/{{deployment}} {{code}}",
                        ),
                    ),
                    unit="reqps",
                    bad=0.1,
                    quiet=True,
                ),
                Shown(
                    "Time to first token",
                    "95 % of the requests of a ModelDeployment get their first token within this time.",
                    (
                        Query(
                            quantile(0.95, FIRST, RUNNER, OF_A_RUNNER, "namespace", "deployment"),
                            "{{namespace}}/{{deployment}}",
                        ),
                    ),
                    unit="s",
                    warn=10,
                    bad=60,
                ),
                Shown(
                    "Whole requests",
                    "95 % of the requests of a ModelDeployment are complete within this time.",
                    (
                        Query(
                            quantile(
                                0.95, "thunderfleet_runner_request_seconds", RUNNER, OF_A_RUNNER, "namespace", "deployment"
                            ),
                            "{{namespace}}/{{deployment}}",
                        ),
                    ),
                    unit="s",
                ),
                Shown(
                    "Streams that broke off",
                    "Streams per second that ended with an error event.",
                    (
                        Query(
                            rate("thunderfleet_runner_stream_errors_total", RUNNER, OF_A_RUNNER, "namespace", "deployment"),
                            "{{namespace}}/{{deployment}}",
                        ),
                    ),
                    unit="reqps",
                    bad=0.1,
                ),
            ),
        ),
        Row(
            "Router (empty without a router)",
            (
                Shown(
                    "Requests",
                    "Requests per second to the router, by ModelDeployment and status.",
                    (Query(rate(f"{ROUTER}_requests_total", CLUSTER, OF_A_TARGET, "model", "code"), "{{model}} {{code}}"),),
                    unit="reqps",
                    quiet=True,
                ),
                Shown(
                    "Time to first byte",
                    "95 % of the requests get the first byte of their answer within this time.",
                    (Query(quantile(0.95, f"{ROUTER}_time_to_first_byte_seconds", CLUSTER, OF_A_TARGET), "95 %"),),
                    unit="s",
                    quiet=True,
                ),
                Shown(
                    "Waiting and in flight",
                    "Requests that wait in routers, and that were sent to groups.",
                    (
                        Query(total(f"{ROUTER}_requests_waiting", CLUSTER, OF_A_TARGET), "waiting"),
                        Query(total(f"{ROUTER}_requests_in_flight", CLUSTER, OF_A_TARGET), "in flight"),
                    ),
                    quiet=True,
                ),
                Shown(
                    "Tokens",
                    "Tokens of prompts and answers per second, by ModelDeployment and name of the key.",
                    (Query(rate(f"{ROUTER}_tokens_total", CLUSTER, OF_A_TARGET, "model", "key"), "{{key}} at {{model}}"),),
                    unit="cps",
                    quiet=True,
                ),
                Shown(
                    "Refused by limits of keys",
                    "Requests per second that a limit refused, by limit, ModelDeployment and name of the key. With queue_full "
                    "and bodies_full, too much waits in the router.",
                    (
                        Query(
                            rate(f"{ROUTER}_limited_total", CLUSTER, OF_A_TARGET, "limit", "model", "key"),
                            "{{key}} at {{model}}: {{limit}}",
                        ),
                    ),
                    unit="reqps",
                    quiet=True,
                ),
                Shown(
                    "Retries",
                    "Requests per second that were sent to another group, and that were in flight when a group failed.",
                    (
                        Query(rate(f"{ROUTER}_retries_total", CLUSTER, OF_A_TARGET), "retries"),
                        Query(rate(f"{ROUTER}_group_failures_total", CLUSTER, OF_A_TARGET), "group failed"),
                    ),
                    unit="reqps",
                    quiet=True,
                ),
                Shown(
                    "Reports of demand",
                    "Reports to the operator per second, by result. Autoscaling uses them.",
                    (Query(rate(f"{ROUTER}_demand_reports_total", CLUSTER, OF_A_TARGET, "result"), "{{result}}"),),
                    unit="reqps",
                    quiet=True,
                ),
            ),
        ),
    ),
    ("namespace", "deployment"),
)

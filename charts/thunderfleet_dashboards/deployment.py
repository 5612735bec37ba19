"""One ModelDeployment: whether it serves, why not, its speed, and the load of its clients."""

from thunderfleet_dashboards.panels import Page, Query, Row, Shown, link_to
from thunderfleet_dashboards.queries import OBJECT, OF_A_RUNNER, RUNNER, latest, quantile, rate, ratio, since, total

OF = ("namespace", "name")
GROUP = (*OF, "group")
RESTARTS = latest("thunderfleet_modeldeployment_group_restarts", OBJECT, *GROUP)
BUDGET = f"clamp_min({latest('thunderfleet_modeldeployment_group_max_restarts', OBJECT, *GROUP)}, 1)"
CACHED = rate("thunderfleet_runner_cached_tokens_total", RUNNER, OF_A_RUNNER)
PROMPT = rate("thunderfleet_runner_prompt_tokens_total", RUNNER, OF_A_RUNNER)
AUTOSCALING = "thunderfleet_modeldeployment_autoscaling"
ASLEEP = latest("thunderfleet_modeldeployment_condition", OBJECT + ', type="Ready", reason="Asleep"', *OF)
LEADER = RUNNER + ', rank="0"'
NAME = "{{namespace}}/{{name}}"


def _quantiles(metric: str, *shares: float) -> tuple[Query, ...]:
    return tuple(Query(quantile(share, metric, RUNNER, OF_A_RUNNER), f"{share:.0%}") for share in shares)


def _kv(part: str) -> str:
    return total(f"thunderfleet_runner_kv_{part}_tokens", LEADER, OF_A_RUNNER, "namespace", "deployment", "group")


PAGE = Page(
    "thunderfleet-deployment",
    "Thunderfleet / ModelDeployment",
    "One ModelDeployment: state and first cause, restarts, latency, sizes, caches and queue.",
    (
        Row(
            "State",
            (
                Shown(
                    "Conditions",
                    "Each condition with its reason: 1 True, 0 False, -1 Unknown.",
                    (
                        Query(
                            latest("thunderfleet_modeldeployment_condition", OBJECT, *OF, "type", "reason"),
                            f"{NAME} {{{{type}}}} {{{{reason}}}}",
                        ),
                    ),
                    kind="table",
                ),
                Shown(
                    "State of groups",
                    "The current state of each group.",
                    (
                        Query(
                            latest("thunderfleet_modeldeployment_group_state", OBJECT, *GROUP, "state") + " == 1",
                            f"{NAME} group {{{{group}}}} {{{{state}}}}",
                        ),
                    ),
                    kind="table",
                ),
                Shown(
                    "First cause of the last failure",
                    "Time since the last failure of a group, with its reason, Mac and cable. Empty if no group has failed.",
                    (
                        Query(
                            since(
                                latest(
                                    "thunderfleet_modeldeployment_group_last_failure_timestamp_seconds",
                                    OBJECT,
                                    *GROUP,
                                    "reason",
                                    "node",
                                    "link",
                                )
                            ),
                            f"{NAME} {{{{reason}}}} {{{{node}}}} {{{{link}}}}",
                        ),
                    ),
                    kind="table",
                    unit="s",
                    quiet=True,
                ),
                Shown(
                    "Groups",
                    "Groups that the ModelDeployment requires, and those that serve.",
                    (
                        Query(latest("thunderfleet_modeldeployment_replicas", OBJECT, *OF), f"{NAME} wanted"),
                        Query(latest("thunderfleet_modeldeployment_ready_replicas", OBJECT, *OF), f"{NAME} serve"),
                    ),
                ),
                Shown(
                    "Autoscaling",
                    "Groups that the requests in progress need, and the limits. More groups are started when more have been "
                    "needed for 15 s, up to the maximum; groups are stopped when fewer have been enough for 2 minutes. What is "
                    "needed is not known while a group does not report; then no group is stopped. Empty without autoscaling.",
                    (
                        Query(latest(f"{AUTOSCALING}_needed_replicas", OBJECT, *OF), f"{NAME} needed"),
                        Query(latest(f"{AUTOSCALING}_min_replicas", OBJECT, *OF), f"{NAME} minimum"),
                        Query(latest(f"{AUTOSCALING}_max_replicas", OBJECT, *OF), f"{NAME} maximum"),
                    ),
                    quiet=True,
                ),
                Shown(
                    "Asleep",
                    "How long a model has had no group because there was no request for it; a request to a router starts one. "
                    "Empty if none sleeps.",
                    (Query(f"{since(latest(f'{AUTOSCALING}_last_scale_timestamp_seconds', OBJECT, *OF))} and {ASLEEP}", NAME),),
                    kind="table",
                    unit="s",
                    quiet=True,
                ),
                Shown(
                    "Restarts against the budget",
                    "Restarts that count, as a share of spec.recovery.maxRestarts. At 1 the group gives up.",
                    (
                        Query(
                            ratio(RESTARTS, BUDGET),
                            f"{NAME} group {{{{group}}}}",
                        ),
                    ),
                    unit="percentunit",
                    warn=0.5,
                    bad=1,
                    links=(link_to("thunderfleet-group", "deployment", "name"),),
                ),
                Shown(
                    "Benchmark",
                    "Generation rate that the most recent benchmark measured.",
                    (Query(latest("thunderfleet_modeldeployment_benchmark_tokens_per_second", OBJECT, *OF), NAME),),
                    unit="cps",
                ),
            ),
        ),
        Row(
            "Speed",
            (
                Shown(
                    "Time to first token",
                    "Seconds from the arrival of a request to its first token.",
                    _quantiles("thunderfleet_runner_time_to_first_token_seconds", 0.5, 0.95),
                    unit="s",
                    warn=5,
                    bad=30,
                ),
                Shown(
                    "Time between tokens",
                    "Seconds from one token of a request to its next.",
                    _quantiles("thunderfleet_runner_time_between_tokens_seconds", 0.5, 0.95),
                    unit="s",
                    warn=0.2,
                    bad=1,
                ),
                Shown(
                    "Whole requests",
                    "Seconds from the arrival of a request to its last token.",
                    _quantiles("thunderfleet_runner_request_seconds", 0.5, 0.95),
                    unit="s",
                ),
                Shown(
                    "Rate of one request",
                    "Tokens per second of one request after its first token; 5 % of the requests are "
                    "slower than the lower line.",
                    _quantiles("thunderfleet_runner_decode_tokens_per_second", 0.5, 0.05),
                    unit="cps",
                ),
                Shown(
                    "Tokens per second",
                    "Tokens that are generated, read in prompts, and taken from the prompt cache.",
                    (
                        Query(rate("thunderfleet_runner_generated_tokens_total", RUNNER, OF_A_RUNNER), "generated"),
                        Query(rate("thunderfleet_runner_prompt_tokens_total", RUNNER, OF_A_RUNNER), "prompt"),
                        Query(rate("thunderfleet_runner_cached_tokens_total", RUNNER, OF_A_RUNNER), "cached"),
                    ),
                    unit="cps",
                ),
                Shown(
                    "Time in the queue",
                    "Seconds that requests waited in the group's queue.",
                    _quantiles("thunderfleet_runner_queue_seconds", 0.95),
                    unit="s",
                    warn=5,
                    bad=60,
                ),
            ),
        ),
        Row(
            "Load",
            (
                Shown(
                    "Running and waiting requests",
                    "Requests that run and that wait in the queues of groups.",
                    (
                        Query(total("thunderfleet_runner_requests_running", RUNNER, OF_A_RUNNER), "running"),
                        Query(total("thunderfleet_runner_queue_depth", RUNNER, OF_A_RUNNER), "waiting"),
                    ),
                    warn=32,
                ),
                Shown(
                    "Size of prompts",
                    "Prompt tokens of one request.",
                    _quantiles("thunderfleet_runner_prompt_size_tokens", 0.5, 0.95),
                ),
                Shown(
                    "Size of answers",
                    "Generated tokens of one request.",
                    _quantiles("thunderfleet_runner_answer_size_tokens", 0.5, 0.95),
                ),
                Shown(
                    "KV cache reserved",
                    "Tokens that running requests have reserved, as a share of the maximum.",
                    (
                        Query(
                            ratio(_kv("reserved"), _kv("limit")),
                            "{{namespace}}/{{deployment}} group {{group}}",
                        ),
                    ),
                    unit="percentunit",
                    warn=0.8,
                    bad=1,
                ),
                Shown(
                    "Prompt cache",
                    "Share of the prompt tokens that came from the prompt cache.",
                    (
                        Query(
                            ratio(CACHED, f"({PROMPT} > 0)"),
                            "cached",
                        ),
                    ),
                    unit="percentunit",
                ),
                Shown(
                    "Requests by status",
                    "Requests per second, by HTTP status.",
                    (Query(rate("thunderfleet_runner_requests_total", RUNNER, OF_A_RUNNER, "code"), "{{code}}"),),
                    unit="reqps",
                ),
            ),
        ),
    ),
    ("namespace", "deployment"),
)

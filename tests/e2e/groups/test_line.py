"""From ``kubectl apply`` to tokens: the line as a user walks it, on the default fleet."""

import json
import os
from datetime import datetime
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from thunderfleet_crds.exchange.mounts import KEYS_FOLDER
from thunderfleet_lib.quantity import to_bytes
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.models import tinymodel

from tests.support.line import MODEL, Alone, Deploy, Deployment, Line, manifest
from tests.support.logfiles import records
from tests.support.waiting import until

Json = dict[str, Any]

PROMPT, TOKENS = tinymodel.MESSAGES[0]["content"], tinymodel.TOKENS
SYSTEM = "thunderfleet-system"


def table(text: str) -> list[dict[str, str]]:
    """Rows of a table that kubectl prints, by column. A cell may be empty: columns begin where their heads do."""
    head, *rows = text.splitlines()
    names = head.split()
    starts, at = [], 0
    for name in names:
        starts.append(at := head.index(name, at))
        at += len(name)
    ends: list[int | None] = [*starts[1:], None]
    return [{n: row[a:b].strip() for n, a, b in zip(names, starts, ends, strict=True)} for row in rows]


@pytest.mark.parametrize(("parallelism", "transport"), [("Pipeline", "Ring"), ("Tensor", "JACCL")])
def test_two_macs_say_what_one_process_says(
    pair: Deployment, deploy: Deploy, alone: Alone, parallelism: str, transport: str
) -> None:
    runtime = {"fastSynch": "Enabled", "env": [{"name": "MLX_MAX_OPS_PER_BUFFER", "value": "20"}]}
    served = pair if parallelism == "Pipeline" else deploy("tensor", parallelism=parallelism, runtime=runtime).until_ready()
    if served is not pair:
        assert served.warnings() == [], "the normal start of a group is no reason for a warning"
    group = served.group()
    variables = ["MLX_MAX_OPS_PER_BUFFER=20", "MLX_METAL_FAST_SYNCH=1"]
    assert group.get("environment", []) == ([] if parallelism == "Pipeline" else variables)
    assert (group["parallelism"], group["transport"]) == (parallelism, transport)
    assert {rank["node"] for rank in group["ranks"]} in ({"studio-1", "studio-2"}, {"studio-1", "mini-1"})
    expected = alone(PROMPT, TOKENS)
    assert len(expected) == TOKENS
    whole = served.ask(PROMPT, TOKENS)
    assert whole.status == 200, whole.body
    (choice,) = whole.json["choices"]
    assert choice["token_ids"] == expected
    text, ids = served.stream(PROMPT, TOKENS)
    assert ids == expected
    assert text == choice["message"]["content"]
    if parallelism == "Pipeline":
        assert sum(rank["layers"]["count"] for rank in group["ranks"]) == tinymodel.LAYERS
    else:
        assert [rank["shard"] for rank in group["ranks"]] == ["1/2", "2/2"]


def test_the_api_lists_its_model_and_refuses_another(pair: Deployment, line: Line) -> None:
    listed = line.request(f"{pair.endpoint}/models")
    assert [model["id"] for model in listed.json["data"]] == ["thunderfleet/tiny-qwen2"]
    refused = line.request(
        f"{pair.endpoint}/chat/completions", {"model": "another", "messages": [{"role": "user", "content": "?"}]}
    )
    assert refused.status == 404
    assert "thunderfleet/tiny-qwen2" in refused.json["error"]["message"]
    base = pair.endpoint.removesuffix("/v1")
    assert [line.request(f"{base}/{path}").status for path in ("healthz", "readyz")] == [200, 200]
    other = yaml.safe_load(pair.kubectl("get", "configmap", "-l", "thunderfleet.io/group=0", "-o", "yaml"))
    assert other["items"], "the plan is a ConfigMap"


def test_clients_of_other_dialects_get_the_same_answer(pair: Deployment, line: Line) -> None:
    """The dialects themselves are tested with their SDKs in the unit tests of the runner."""
    messages = [{"role": "user", "content": PROMPT}]
    wanted = pair.ask(PROMPT, TOKENS).json["choices"][0]["message"]["content"]
    anthropic = line.request(
        f"{pair.endpoint}/messages", {"model": pair.name, "messages": messages, "max_tokens": TOKENS, "temperature": 0}
    )
    assert [block["text"] for block in anthropic.json["content"]] == [wanted]
    responses = line.request(
        f"{pair.endpoint}/responses",
        {"model": "thunderfleet/tiny-qwen2", "input": messages, "max_output_tokens": TOKENS, "temperature": 0},
    )
    assert [part["text"] for item in responses.json["output"] for part in item["content"]] == [wanted]
    shape = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    forced = {"type": "json_schema", "json_schema": {"name": "answer", "schema": shape}}
    answer = line.request(
        f"{pair.endpoint}/chat/completions",
        {"messages": messages, "max_tokens": 40, "temperature": 0, "response_format": forced, "keep_alive": "5m"},
    )
    assert list(json.loads(answer.json["choices"][0]["message"]["content"])) == ["ok"]


def test_the_benchmark_is_in_status_and_in_the_columns(pair: Deployment, line: Line) -> None:
    measured = pair.until(lambda: pair.status.get("benchmark"), "a benchmark")
    assert float(measured["decodeTokensPerSecond"]) > 0
    assert float(measured["prefillTokensPerSecond"]) > 0
    assert measured["timeToFirstTokenMicroseconds"] > 0
    assert (measured["worldSize"], measured["transport"]) == (2, "Ring")
    assert datetime.fromisoformat(measured["measuredAt"]) <= datetime.now().astimezone()
    pair.until_condition("Benchmarked", "True", "Measured")
    assert "every bit right" in pair.until_condition("Verified", "True", "Verified")["message"]

    (row,) = table(pair.kubectl("get", "md", pair.name))
    shown = {name: row[name] for name in ("NAME", "MODEL", "READY", "NODES", "TRANSPORT", "TOK/S", "STATUS")}
    assert shown == {
        "NAME": pair.name,
        "MODEL": "thunderfleet/tiny-qwen2",
        "READY": "1/1",
        "NODES": ",".join(rank["node"] for rank in pair.ranks()),
        "TRANSPORT": "Ring",
        "TOK/S": pair.status["benchmark"]["decodeTokensPerSecond"],
        "STATUS": "Ready",
    }


def test_profiles_and_links_tell_the_fleet(line: Line) -> None:
    profiles = {row["NAME"]: row for row in table(line.kubectl("get", "np"))}
    assert {name: (row["CHIP"], row["MEMORY"], row["RDMA"], row["LINKS"]) for name, row in profiles.items()} == {
        "mini-1": ("Apple M4", "32Gi", "RDMADisabled", "1"),
        "studio-1": ("Apple M3 Ultra", "96Gi", "Ready", "2"),
        "studio-2": ("Apple M3 Ultra", "96Gi", "Ready", "1"),
    }
    links = {row["NAME"]: (row["SPEED"], row["GENERATION"], row["RDMA"]) for row in table(line.kubectl("get", "tbl"))}
    assert links == {
        "mini-1.tb1--studio-1.tb2": ("40G", "TB4", "BelowThunderbolt5"),
        "studio-1.tb1--studio-2.tb1": ("80G", "TB5", "Usable"),
    }
    category = line.kubectl("get", "thunderfleet", "-A", "-o", "name")
    assert "nodeprofile.thunderfleet.io/mini-1" in category and "thunderboltlink.thunderfleet.io/" in category
    explained = line.kubectl("explain", "md.spec.memory.contextTokens")
    assert "Maximum length of one request, prompt and completion, in tokens." in explained
    assert line.kubectl("explain", "md.spec.verify").split("ENUM:")[1].split()[:3] == ["Full", "Quick", "None"]


def test_logs_and_exec_of_a_runner(pair: Deployment) -> None:
    leader, follower = (rank["pod"] for rank in pair.ranks())
    assert "supervisor of rank 0" in pair.kubectl("logs", leader)
    assert "supervisor of rank 1" in pair.kubectl("logs", follower)
    said = pair.kubectl("exec", leader, "--", "thunderfleet-runner", "capabilities", "-o", "json")
    assert "ring" in yaml.safe_load(said)["backends"]
    assert pair.kubectl("exec", follower, "--", "sh", "-c", "echo $POD_NAME; sw_vers -productVersion").split() == [
        follower,
        "26.3",
    ]


def test_logs_name_the_same_things_everywhere_and_have_no_secret(pair: Deployment, line: Line) -> None:
    group = {"namespace": pair.namespace, "deployment": pair.name, "group": 0}
    epoch, first = pair.group()["epoch"], pair.ranks()[0]
    place = {**group, "epoch": epoch, "rank": 0, "node": first["node"], "pod": first["pod"]}
    wanted = {
        "operator": {**group, "epoch": epoch, "level": "info", "message": f"{pair.namespace}/{pair.name}-0: placed epoch"},
        "runner": {**place, "level": "info", "message": "supervisor of rank 0"},
        "kubelet": {**place, "message": "Started"},
        "agent": {"node": first["node"], "message": "listening on"},
    }
    for program, fields in wanted.items():
        message = fields.pop("message")
        found = [one for one in records(line.cluster, program) if message in one["message"]]
        assert any(fields.items() <= one.items() for one in found), (program, fields, found[-3:])
    attempts = {one.get("attempt") for one in records(line.cluster, "runner") if "-> Ready" in one["message"]}
    assert attempts and None not in attempts
    line.secrets.look()
    assert len(line.secrets.needles()) > 2
    assert line.secrets.found(line.cluster) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only a kubelet that runs as root gives pods users of their own")
def test_runners_and_agents_have_users_of_their_own(pair: Deployment, line: Line) -> None:
    """A runner's key, which its Secret says everybody of the group may read, is for its own user only."""
    pods = line.items("pods", "-A")
    on_macs = [pod for pod in pods if pod["spec"]["nodeName"] in line.macs and pod["status"]["phase"] == "Running"]
    users = {}
    for pod in on_macs:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        users[name] = line.kubectl("exec", "-n", namespace, name, "--", "id", "-u").strip()
    assert {rank["pod"] for rank in pair.ranks()} < set(users)
    assert any(name.startswith("thunderfleet-agent") for name in users)
    assert len(set(users.values())) == len(users)
    assert all(int(user) >= 1_000_000_000 for user in users.values())
    leader = str(pair.ranks()[0]["pod"])
    key = f'"$CONTAINER_SANDBOX_MOUNT_POINT{KEYS_FOLDER}/tls.key"'
    about = pair.kubectl("exec", leader, "--", "sh", "-c", f"stat -L -c '%u %a' {key}").split()
    assert about == [users[leader], "400"]


def until_counted(served: Deployment, name: str, labels: dict[str, str]) -> None:
    """Waits until rank 0 has counted something with these labels: a request is counted after its answer."""

    def samples() -> list[tuple[dict[str, str], float]]:
        text = served.line.request(f"{served.endpoint.removesuffix('/v1')}/metrics").body
        families = text_string_to_metric_families(text)
        return [(one.labels, one.value) for family in families for one in family.samples if one.name == name]

    def counted() -> bool:
        return any(found == labels and value >= 1 for found, value in samples())

    until(counted, f"the runner counts {name} with {labels}", describe=lambda: str(samples()))


def test_operator_and_runner_have_metrics(pair: Deployment, line: Line) -> None:
    pair.tokens("How many?", 2)
    place = {
        "namespace": pair.namespace,
        "deployment": pair.name,
        "group": "0",
        "rank": "0",
        "node": str(pair.ranks()[0]["node"]),
    }
    for name, more in (
        ("thunderfleet_runner_requests_total", {"code": "200", "endpoint": "/v1/chat/completions"}),
        ("thunderfleet_runner_time_to_first_token_seconds_count", {}),
    ):
        until_counted(pair, name, place | more)
    wanted = (
        'reconciles_total{kind="modeldeployments",result="ok"}',
        "reconcile_duration_seconds_count",
        "reconcile_errors",
        "queue_depth",
        'groups{state="Ready"} 1.0',
        "api_writes_total",
    )

    def missing() -> list[str]:
        """What the leader does not export yet. It counts groups in a round after the one that wrote their state."""
        texts = []
        for pod in line.items("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=operator"):
            port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
            texts.append(line.request(f"http://{pod['status']['podIP']}:{port}/metrics").body)
        leading = [text for text in texts if "thunderfleet_operator_leading 1.0" in text]
        # While another replica takes over, none leads.
        assert len(texts) == 2 and len(leading) <= 1
        return [name for name in wanted if not leading or f"thunderfleet_operator_{name}" not in leading[0]]

    until(lambda: not missing(), "the operator exports its metrics", describe=lambda: str(missing()))


def scaled(deployment: Deployment) -> tuple[int, int, set[str]]:
    """The scale subresource, which a HorizontalPodAutoscaler reads: replicas wanted, replicas there, pods of the selector."""
    scale = deployment.line.api.get(f"{deployment.path}/scale")
    assert scale is not None and scale["kind"] == "Scale"
    pods = deployment.line.items("pods", "-n", deployment.namespace, "-l", scale["status"]["selector"])
    return scale["spec"]["replicas"], scale["status"]["replicas"], {str(pod["metadata"]["name"]) for pod in pods}


def test_scaled_out_and_changed_it_rolls(line: Line, deploy: Deploy, alone: Alone) -> None:
    solo = deploy("solo", nodes={"min": 1, "max": 1}).until_ready()
    assert solo.group()["transport"] == "None"
    first = str(solo.ranks()[0]["pod"])
    assert scaled(solo) == (1, 1, {first})
    solo.kubectl("scale", "md", solo.name, "--replicas=2")
    solo.until_ready()
    groups = solo.status["groups"]
    assert scaled(solo) == (2, 2, {first, str(groups[1]["ranks"][0]["pod"])})
    assert len({group["endpoint"] for group in groups}) == 2
    assert solo.status["readyReplicas"] == 2
    assert solo.kubectl("get", "md", solo.name, "-o", "jsonpath={.status.replicas}") == "2"
    expected = alone(PROMPT, TOKENS)
    for group in groups:
        answer = line.request(
            f"{group['endpoint']}/completions", {"model": "thunderfleet/tiny-qwen2", "prompt": "a", "max_tokens": 2}
        )
        assert answer.status == 200, answer.body
    assert solo.tokens(PROMPT, TOKENS) == expected

    solo.kubectl("scale", "md", solo.name, "--replicas=1")
    solo.patch({"memory": {"contextTokens": 2048}})
    solo.until_ready()
    solo.until(
        lambda: len({p["metadata"]["labels"]["thunderfleet.io/group"] for p in solo.children() if p["kind"] == "Pod"}) == 1,
        "only one group is left",
    )
    group = solo.group()
    assert group["epoch"] == 2, "a changed spec is a new placement"
    assert scaled(solo) == (1, 1, {str(group["ranks"][0]["pod"])})
    assert solo.tokens(PROMPT, TOKENS) == expected
    long = solo.ask("x " * 3000, 1)
    assert long.status == 400, "the new limit of the context holds"
    assert "2048" in long.json["error"]["message"]


def test_a_second_group_without_a_placement_says_what_is_missing(pair: Deployment, deploy: Deploy, alone: Alone) -> None:
    both = deploy("both", replicas=2, nodes={"min": len(pair.line.macs) + 1})
    message = both.until_condition("Placed", "False", "NotEnoughMacs")["message"]
    assert "studio-1" in message and "studio-2" in message and "mini-1" in message
    assert pair.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)


def quota_of(counted: Deployment) -> Json:
    """The status of its quota; empty while the controller has not seen it."""
    found: Json = counted.line.json("get", "quota", "models", "-n", counted.namespace).get("status", {})
    return found


def test_gpu_memory_is_a_resource_that_quotas_count(line: Line, pair: Deployment, deploy: Deploy) -> None:
    mac, resource = str(pair.ranks()[0]["node"]), "thunderfleet.io/gpu-memory"

    def allocatable() -> tuple[int, int]:
        found = line.json("get", "node", mac)["status"]["allocatable"]
        return to_bytes(found[resource]), to_bytes(found["memory"])

    before = allocatable()
    assert before[0] == before[1] > 0
    lower = before[0] // 2**20 - 512
    line.run(mac, "sysctl", f"iogpu.wired_limit_mb={lower}")
    try:
        only = {"min": 1, "max": 1, "selector": {"kubernetes.io/hostname": mac}}
        counted = deploy("counted", nodes=only, suspend=True)
        hard, count = f"requests.{resource}", "count/modeldeployments.thunderfleet.io"
        counted.kubectl("create", "quota", "models", f"--hard={hard}=1Mi,{count}=1")
        until(lambda: quota_of(counted).get("used"), "the quota counts")
        second = yaml.safe_dump(manifest(counted.namespace, "second", {"model": {"repository": MODEL}, "suspend": True}))
        until(lambda: quota_of(counted)["used"].get(count) == "1", "the quota counts ModelDeployments")
        with pytest.raises(LocalClusterError, match="exceeded quota: models"):
            counted.kubectl("create", "-f", "-", text=second)
        counted.patch({"suspend": False})
        message = counted.until_condition("Placed", "False", "QuotaExceeded")["message"]
        assert f"{hard}: a pod requests " in message and f"kubectl edit resourcequota models -n {counted.namespace}" in message
        counted.kubectl("patch", "quota", "models", "--type=merge", "-p", json.dumps({"spec": {"hard": {hard: "1Ti"}}}))
        until(lambda: allocatable() == (lower * 2**20,) * 2, "the Node has the new limit", describe=lambda: str(allocatable()))
        counted.until_ready()
        (rank,) = counted.ranks()
        used = quota_of(counted)["used"][hard]
        assert to_bytes(used) == rank["memoryBytes"]
        shown = line.kubectl("describe", "node", mac)
        requested = next(one.split() for one in shown.split("Allocated resources")[1].splitlines() if resource in one)
        both = rank["memoryBytes"] + pair.ranks()[0]["memoryBytes"]
        assert to_bytes(requested[1]) == both, "two groups on one Mac"
        assert pair.is_ready(), "a group that runs stays"
    finally:
        line.run(mac, "sysctl", "iogpu.wired_limit_mb=0")

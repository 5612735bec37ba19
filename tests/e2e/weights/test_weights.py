"""Models that are on no Mac: from a repository of the hub to tokens, with two Macs whose model stores are empty.

The hub is a real server on a Linux machine of the cluster's network.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_localcluster.models import tinymodel

from tests.support.line import MODEL, Alone, Deploy, Deployment, Line, chat, condition
from tests.support.models import largemodel, shardedmodel
from tests.support.models.fetching import (
    HUB_MACHINE,
    Copies,
    configure,
    downloads,
    from_macs,
    received,
    requests,
    start_hub,
    start_server,
    stop_server,
)
from tests.support.models.folders import read, with_list
from tests.support.waiting import until

REPOSITORY = "fresh/tiny"
LATER = "later/tiny"
"""The same files under another name, which no Mac has."""
BULKY = "bulky/tiny"
"""The same with a large file of no use: what is sent beside a copy is little against it."""
BULK_BYTES = 24 * 2**20
CHUNK_BYTES = 8 * 2**20
SLOW_MBPS = 25
"""Of the cable, so that it can be pulled while most of the copy is still to come."""
LINK, END, CABLE = "studio-1.tb1--studio-2.tb1", "studio-1:1", "en2"
SHARDED = "sharded/tiny"
"""In several files of weights, of which one has layers of both ranks."""
LATER_LAYERS = 2
PLAIN, PLAIN_SEED = "plain/tiny", 14
"""To be quantized. Other weights again, so that they have to be read."""
URI_PORT, URI_LAYERS = 18090, 3
GATED, GATED_LAYERS, TOKEN = "gated/tiny", 1, "hf_of-a-test"
LARGE, LARGE_BYTES, LARGE_SECONDS = "large/tiny", 5 * 10**9, 900
ANSWER_SECONDS = 300
PROMPT, TOKENS = "Hello", 8


@pytest.fixture(scope="module")
def line(desk: Line) -> Line:
    return desk


@pytest.fixture(scope="module")
def hub(line: Line, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a hub that has the model, which the operator uses."""
    machine = line.cluster.machines[HUB_MACHINE]
    folder = machine.folder / "hub"
    tinymodel.make(folder / "model")
    # Other weights: a Mac that has a file already, of whatever repository, copies nothing.
    tinymodel.make(folder / "later", layers=LATER_LAYERS)
    shardedmodel.make(folder / "sharded")
    tinymodel.make(folder / "plain", seed=PLAIN_SEED)
    tinymodel.make(folder / "gated", layers=GATED_LAYERS)
    tinymodel.make(folder / "bulky")
    (folder / "bulky" / "notes.txt").write_bytes(random.Random(14).randbytes(BULK_BYTES))
    address = machine.address
    url = start_hub(
        line,
        {
            REPOSITORY: "model",
            LATER: "later",
            SHARDED: "sharded",
            BULKY: "bulky",
            PLAIN: "plain",
            GATED: f"gated={TOKEN}",
        },
    )
    # Beside it, a server with HTTPS at two ports. Both may be asked, but only the first one may have a private address.
    tinymodel.make(folder / "at-uri", layers=URI_LAYERS)
    command = [sys.executable, "-m", "tests.support.models.folders", address, str(URI_PORT), f"{folder}/authority.pem"]
    command.append(f"tiny={folder / 'at-uri'}")
    start_server(line, "uri", command)
    first = f"{address}:{URI_PORT}"
    authority = (folder / "authority.pem").read_text()
    uris = {"hosts": [first, f"{address}:{URI_PORT + 1}"], "privateHosts": [first], "certificateAuthorities": authority}
    values = tmp_path_factory.mktemp("hub") / "values.yaml"
    configure(line, values, {"hub": {"enabled": True, "endpoint": url}, "uris": uris})
    yield url
    for name in ("hub", "uri", "large"):
        # One of the tests has ended the hub.
        stop_server(line, name)
    # No test after these needs a hub or asks for a model that no Mac has. Only a cluster that others use later is as before.
    if os.environ.get("THUNDERFLEET_E2E_DESK"):
        nowhere = {"hosts": [], "privateHosts": [], "certificateAuthorities": ""}
        configure(line, values, {"hub": {"enabled": False, "endpoint": ""}, "uris": nowhere})


def test_a_repository_that_is_on_no_mac_serves_the_tokens_of_one_process(
    line: Line, hub: str, deploy: Deploy, alone: Alone
) -> None:
    deployment = deploy("fetched", model={"repository": REPOSITORY}, parallelism="Pipeline", transport="Ring").until_ready()
    status = deployment.status
    assert {copy["node"]: copy["phase"] for copy in status["copies"]} == dict.fromkeys(line.macs, "Complete")
    answer = line.request(f"{deployment.endpoint}/chat/completions", {**chat(PROMPT, TOKENS), "model": REPOSITORY})
    assert answer.status == 200, answer.body
    assert answer.json["choices"][0]["token_ids"] == alone(PROMPT, TOKENS)
    # One Mac asked the hub for the weights, the other one that Mac.
    assert downloads(line) == 2, "the header, then the file"
    cache = line.json("get", "mc", deployment.name, "-n", deployment.namespace)
    assert cache["status"]["copies"] == "2/2"
    assert cache["metadata"]["ownerReferences"][0]["name"] == deployment.name
    wanted = {path.name: path.read_bytes() for path in (line.cluster.models / MODEL).iterdir()}
    for name in line.macs:
        store = line.cluster.machines[name].folder / "disk/Library/Thunderfleet/models/models--fresh--tiny"
        snapshot = store / "snapshots" / status["commit"]
        assert {path.name: (store / "blobs" / path.readlink().name).read_bytes() for path in snapshot.iterdir()} == wanted


def test_a_repository_is_quantized_once_and_serves_the_tokens_of_mlx_lms_own_conversion(
    line: Line, hub: str, deploy: Deploy, tmp_path: Path
) -> None:
    source = line.cluster.machines[HUB_MACHINE].folder / "hub" / "plain"
    model = {"repository": PLAIN, "quantize": {"bits": 4, "groupSize": 32}}
    before = len(requests(line))
    deployment = deploy("quantized", model=model, parallelism="Pipeline", transport="Ring")
    expected = converted(source, tmp_path / "model")
    deployment.until_ready()
    status, cache = deployment.status, line.json("get", "mc", deployment.name, "-n", deployment.namespace)
    made_from = cache["status"]["quantizedFrom"]
    assert status["commit"] == made_from["commit"] != cache["status"]["commit"]
    assert {copy["node"]: copy["phase"] for copy in status["copies"]} == dict.fromkeys(line.macs, "Complete")
    assert condition(cache, "Resolved")["reason"] == "Quantized"
    # Placement counts the memory of the quantized weights, which the headers had given before anything was read.
    assert cache["status"]["model"]["bits"] == 4
    assert made_from["quantizedBytes"] < cache["status"]["bytes"] < made_from["bytes"] / 2
    # One Mac asked the hub for the weights, the other one that Mac for what was made of them.
    large = [text for text in requests(line)[before:] if text.startswith("GET /cdn/")]
    assert len(large) == 2, "the header, then the file"
    wanted = (tmp_path / "model" / "model.safetensors").read_bytes()
    for name in line.macs:
        store = line.cluster.machines[name].folder / "disk/Library/Thunderfleet/models"
        snapshot = store / "models--plain--tiny_4bit_g32" / "snapshots" / cache["status"]["commit"]
        blob = store / "models--plain--tiny_4bit_g32" / "blobs" / (snapshot / "model.safetensors").readlink().name
        assert blob.read_bytes() == wanted
        assert not (store / "models--plain--tiny").exists()
        assert list((store / ".thunderfleet/staging").iterdir()) == []
    answer = line.request(f"{deployment.endpoint}/chat/completions", {**chat(PROMPT, TOKENS), "model": PLAIN})
    assert answer.status == 200, answer.body
    assert answer.json["choices"][0]["token_ids"] == expected


def converted(source: Path, target: Path) -> list[int]:
    """Converts a model with mlx-lm's own command; the tokens that one process answers with it."""
    how = ["-q", "--q-bits", "4", "--q-group-size", "32"]
    convert = [sys.executable, "-m", "mlx_lm", "convert", "--hf-path", str(source), "--mlx-path", str(target), *how]
    ask = [sys.executable, "-m", "thunderfleet_localcluster.models.reference", str(target), PROMPT, "--tokens", str(TOKENS)]
    subprocess.run(convert, check=True, capture_output=True, timeout=ANSWER_SECONDS)
    found: list[int] = json.loads(subprocess.run(ask, check=True, capture_output=True, timeout=ANSWER_SECONDS).stdout)
    return found


@pytest.mark.soak
def test_a_mac_of_a_pipeline_fetches_only_the_files_of_its_layers(line: Line, hub: str, deploy: Deploy, alone: Alone) -> None:
    model = {"repository": SHARDED, "copies": "Shard"}
    deployment = deploy("sharded", model=model, parallelism="Pipeline", transport="Ring", nodes={"min": 2}).until_ready()
    status = deployment.status
    assert {copy["node"]: copy["phase"] for copy in status["copies"]} == dict.fromkeys(line.macs, "Part")
    source = line.cluster.machines[HUB_MACHINE].folder / "hub" / "sharded"
    shared, first, both, last = shardedmodel.names(4)
    small = {path.name for path in source.iterdir() if path.suffix != ".safetensors"}
    layers = {rank["node"]: tuple(rank["layers"]) for rank in plan(line, deployment)["ranks"]}
    assert sorted(layers.values()) == [(0, 2), (2, 4)]
    for name, held in layers.items():
        store = line.cluster.machines[name].folder / "disk/Library/Thunderfleet/models"
        (folder,) = (store / ".thunderfleet/parts").iterdir()
        own = first if held == (0, 2) else last
        files = {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}
        assert files == {path: (source / path).read_bytes() for path in (*small, shared, both, own)}
        # No other file of the model is on this Mac, and it is not taken for one that has all.
        assert len(list((store / "models--sharded--tiny" / "blobs").iterdir())) == len(files)
        assert not (store / "models--sharded--tiny" / "snapshots").exists()
        copy = next(one for one in status["copies"] if one["node"] == name)
        assert copy["bytes"] == copy["bytesDone"] == sum(map(len, files.values()))
        assert copy["layers"] == f"{held[0]}-{held[1] - 1}"
    answer = line.request(f"{deployment.endpoint}/chat/completions", {**chat(PROMPT, TOKENS), "model": SHARDED})
    assert answer.status == 200, answer.body
    assert answer.json["choices"][0]["token_ids"] == alone(PROMPT, TOKENS)

    # A new placement moves all layers to one Mac. It copies the files that it lacks, from the Mac that has had these layers.
    asked, received = len(requests(line)), {name: from_macs(line, name) for name in line.macs}
    deployment.patch({"nodes": {"min": 1, "max": 1}})
    deployment.until(lambda: len(ranks(deployment)) == 1, "one Mac has all layers")
    deployment.until_ready()
    (name,) = ranks(deployment)
    (folder,) = (line.cluster.machines[name].folder / "disk/Library/Thunderfleet/models/.thunderfleet/parts").iterdir()
    files = {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}
    assert files == {path.name: path.read_bytes() for path in source.iterdir()}
    assert from_macs(line, name) > received[name]
    assert len(requests(line)) == asked
    answer = line.request(f"{deployment.endpoint}/chat/completions", {**chat(PROMPT, TOKENS), "model": SHARDED})
    assert answer.status == 200, answer.body
    assert answer.json["choices"][0]["token_ids"] == alone(PROMPT, TOKENS)


def ranks(deployment: Deployment) -> list[str]:
    """The Macs of a deployment's only group."""
    (group,) = deployment.status.get("groups") or [{}]
    return [rank["node"] for rank in group.get("ranks") or []]


def plan(line: Line, deployment: Deployment) -> dict[str, Any]:
    """The plan of a deployment's only group."""
    name = f"{deployment.name}-0-e1"
    found: dict[str, Any] = json.loads(line.json("get", "configmap", name, "-n", deployment.namespace)["data"]["plan.json"])
    return found


def test_a_copy_crosses_the_cable_and_the_lan_when_the_cable_is_pulled(line: Line, hub: str) -> None:
    until(lambda: condition(line.json("get", "tbl", LINK), "Connected").get("status") == "True", "the cable is connected")
    # A cable in use by a group, such as that of the test before, carries no copy that can take the LAN.
    until(
        lambda: (
            not any(
                LINK in json.dumps(line.json("get", "nodeprofile", mac).get("status", {}).get("groups", []))
                for mac in line.macs
            )
        ),
        "no group uses the cable",
    )
    copies = Copies(line, "bulky", BULKY)
    copies.keep(1)
    try:
        copies.until_on(1)
        (first,) = (copy["node"] for copy in copies.status()["macs"])
        assert copies.of(first)["source"] == "Hub"
        (second,) = set(line.macs) - {first}
        line.cluster.cable("slow", END, SLOW_MBPS)
        cable, lan = (received(line, second, name) for name in (CABLE, "en0"))
        copies.keep(2)
        until(lambda: copies.of(second).get("link") == LINK, "the cable is named", describe=lambda: str(copies.of(second)))
        assert copies.of(second)["peer"] == first
        until(lambda: received(line, second, CABLE) - cable > 1.2 * CHUNK_BYTES, "a chunk has crossed the cable")
        assert received(line, second, "en0") - lan < CHUNK_BYTES / 2
        line.cluster.cable("pull", END)
        crossed, before = received(line, second, CABLE) - cable, received(line, second, "en0")
        assert crossed < BULK_BYTES, "the cable was too fast for this test"
        copies.until_on(2)
        # Whole chunks of those that crossed the cable are not fetched again.
        assert received(line, second, "en0") - before > BULK_BYTES - crossed
        assert received(line, second, "en0") - before < BULK_BYTES
        assert copies.of(second)["source"] == "Peer" and copies.of(second)["peer"] == first
    finally:
        line.cluster.cable("plug", END)
        copies.delete()


def secret(line: Line, namespace: str) -> str:
    """Creates a Secret with the token of the gated repository. Returns its name."""
    name = "hub-token"
    line.kubectl("create", "secret", "generic", name, "-n", namespace, f"--from-literal=token={TOKEN}")
    return name


def test_a_namespace_gets_a_gated_repository_that_macs_have_only_with_its_own_token(
    line: Line, hub: str, deploy: Deploy, alone: Alone
) -> None:
    copies = Copies(line, "gated", GATED, tokenSecret=secret(line, "default"))
    copies.keep(2)
    try:
        copies.until_on(2)
        commit = copies.status()["commit"]
        deployment = deploy("stranger", model={"repository": GATED}, nodes={"max": 1})
        assert "is gated" in deployment.until_condition("ModelResolved", "False", "Gated")["message"]
        # Nor by the path of the files.
        store = line.json("get", "nodeprofile", line.macs[0])["status"]["store"]["folder"]
        path = f"{store}/models--{GATED.replace('/', '--')}/snapshots/{commit}"
        deployment.patch({"model": {"repository": None, "path": path}})
        deployment.until_condition("ModelResolved", "False", "ModelNotFound")
    finally:
        copies.delete()
        line.kubectl("delete", "secret", "hub-token", "-n", "default")
    # The Macs keep the files when nothing refers to them any more, and remember.
    token = secret(line, deployment.namespace)
    deployment.patch({"model": {"path": None, "repository": GATED}})
    deployment.until_condition("ModelResolved", "False", "Gated")
    asked = downloads(line)
    deployment.patch({"model": {"tokenSecret": token}})
    deployment.until_ready()
    answer = line.request(f"{deployment.endpoint}/chat/completions", {**chat(PROMPT, TOKENS), "model": GATED})
    assert answer.json["choices"][0]["token_ids"] == alone(PROMPT, TOKENS, GATED_LAYERS)
    assert downloads(line) == asked + 1, "only the header"


def test_a_model_at_a_uri_that_is_on_no_mac_serves_the_tokens_of_one_process(
    line: Line, hub: str, deploy: Deploy, alone: Alone
) -> None:
    machine = line.cluster.machines[HUB_MACHINE]
    files = read(machine.folder / "hub" / "at-uri")
    uri, (_, sha256) = f"https://{machine.address}:{URI_PORT}/folders/tiny/", with_list(files)
    deployment = deploy("at-uri", model={"uri": uri, "sha256": sha256}, parallelism="Pipeline", transport="Ring").until_ready()
    status = deployment.status
    assert (status["model"], status["commit"]) == ("folders/tiny", sha256)
    assert {copy["node"]: copy["phase"] for copy in status["copies"]} == dict.fromkeys(line.macs, "Complete")
    answer = line.request(f"{deployment.endpoint}/chat/completions", {**chat(PROMPT, TOKENS), "model": "folders/tiny"})
    assert answer.status == 200, answer.body
    assert answer.json["choices"][0]["token_ids"] == alone(PROMPT, TOKENS, URI_LAYERS)
    # One Mac asked for the weights, the other one that Mac.
    asked = (machine.folder / "hub" / "uri-log").read_text().splitlines()
    assert asked.count("GET /folders/tiny/model.safetensors") == 2, "the header, then the file"
    for name in line.macs:
        store = line.cluster.machines[name].folder / "disk/Library/Thunderfleet/models"
        (snapshot,) = store.glob(f"models--uri.*--tiny/snapshots/{sha256}")
        assert read(snapshot) == files
        assert list((store / ".thunderfleet/staging").iterdir()) == []

    # Another list than the one at the URI, and a host with a private address that may not have one.
    inside = uri.replace(str(URI_PORT), str(URI_PORT + 1))
    for source, reason, says in (
        ({"uri": uri, "sha256": "a" * 64}, "ManifestMismatch", f"has the hash {sha256}, not {'a' * 64}"),
        ({"uri": inside, "sha256": sha256}, "HostNotAllowed", f"has the address {machine.address}, which is private"),
    ):
        deployment.patch({"model": source})
        assert says in deployment.until_condition("ModelResolved", "False", reason)["message"]


@pytest.mark.soak
def test_five_gigabytes_are_fetched_copied_and_serve_the_tokens_of_one_process(
    line: Line, hub: str, deploy: Deploy, alone: Alone
) -> None:
    # Its place is taken by a hub that has this model; tests before may have ended it.
    stop_server(line)
    size = largemodel.make(line.cluster.machines[HUB_MACHINE].folder / "hub" / "large", LARGE_BYTES)
    start_hub(line, {LARGE: "large"}, "large", ANSWER_SECONDS)
    memory = {"contextTokens": 512, "cachedTokens": 512, "concurrentRequests": 1}
    deployment = deploy("large", model={"repository": LARGE}, parallelism="Pipeline", transport="Ring", memory=memory)
    deployment.until(deployment.is_ready, "Ready", LARGE_SECONDS)
    copies = {copy["node"]: (copy["phase"], copy["bytesDone"] >= size) for copy in deployment.status["copies"]}
    assert copies == dict.fromkeys(line.macs, ("Complete", True))
    answer = line.request(f"{deployment.endpoint}/chat/completions", {**chat(PROMPT, TOKENS), "model": LARGE})
    assert answer.status == 200, answer.body
    # Its weights are those of the small model, and others that add nothing.
    assert answer.json["choices"][0]["token_ids"] == alone(PROMPT, TOKENS)
    assert downloads(line, "large") == 2, "the header, then the file, once"


# The last one: it ends the hub.
def test_a_mac_that_is_needed_later_copies_the_model_without_the_hub(
    line: Line, hub: str, deploy: Deploy, alone: Alone
) -> None:
    deployment = deploy("later", model={"repository": LATER}, nodes={"max": 1}).until_ready()
    first = deployment.status["groups"][0]["ranks"][0]["node"]
    (second,) = set(line.macs) - {first}
    stop_server(line)
    before = from_macs(line, second)
    deployment.patch({"replicas": 2})
    deployment.until(lambda: deployment.status.get("ready") == "2/2", "two groups serve")
    assert {copy["node"]: copy["phase"] for copy in deployment.status["copies"]} == dict.fromkeys(line.macs, "Complete")
    assert from_macs(line, second) > before
    expected = alone(PROMPT, TOKENS, LATER_LAYERS)
    for group in deployment.status["groups"]:
        answer = line.request(f"{group['endpoint']}/chat/completions", {**chat(PROMPT, TOKENS), "model": LATER})
        assert answer.json["choices"][0]["token_ids"] == expected

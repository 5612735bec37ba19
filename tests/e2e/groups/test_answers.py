"""What a group must answer right: a model that copies, on two Macs, and weights that are wrong from one start to the next."""

import re
import uuid

import mlx.core as mx
from thunderfleet_runner.rank.checks import kernels

from tests.support.line import Deploy, Line, condition
from tests.support.models import copymodel

VOCABULARY = 1000
"""Enough for the shortest passage."""


def test_weights_that_were_right_before_are_not_served_when_they_are_wrong(line: Line, deploy: Deploy) -> None:
    folder = line.cluster.models / "thunderfleet" / f"copier-{uuid.uuid4().hex[:6]}"
    copymodel.make(folder, VOCABULARY)
    served = deploy("copier", model={"path": str(folder)}).until_ready()
    served.until(lambda: served.group().get("provenLengths", {}).get("lengths") == [300], "the passage is continued")
    told = served.until_condition("Verified", "True", "Verified")
    found = re.search(
        r"every bit right; products with (\d) of 4 kinds of the model's matrices are right, in ([0-9.]+) s", told["message"]
    )
    assert found is not None, told["message"]
    assert found[1] == "4" or float(found[2]) >= kernels.LIMIT_SECONDS, "kinds are left out only when the time is over"
    assert "; answers: passages of 300 tokens continued correctly" in told["message"]

    weights = copymodel.weights(VOCABULARY, copymodel.SEED)
    wrong = weights | {
        "model.layers.1.self_attn.v_proj.weight": mx.zeros_like(weights["model.layers.1.self_attn.v_proj.weight"])
    }
    mx.save_safetensors(str(folder / "model.safetensors"), wrong, metadata={"format": "mlx"})
    with line.api.watched(served.path) as seen:
        # At once: after the first one the operator deletes the others, and they may be gone when they are asked for.
        served.kubectl("delete", "pod", "--wait=false", *(rank["pod"] for rank in served.ranks()))
        served.until(lambda: served.state == "GaveUp", "it gives up")
    told = served.until_condition("Verified", "False", "OutputWrong")
    assert "a passage of 300 tokens and then 32 of these tokens again; token 1 of the answer is " in told["message"]
    assert served.group()["message"].endswith("to try again, delete the pods of the group")
    assert condition(served.get(), "Ready").get("status") == "False"
    epoch = served.group()["epoch"]
    ready = [condition(item, "Ready") for item in seen if item["status"]["groups"][0]["epoch"] == epoch]
    assert not [one for one in ready if one["status"] == "True"], "no client was served"

    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    served.kubectl("delete", "pod", served.ranks()[0]["pod"], "--wait=false")
    served.until(lambda: served.is_ready() and served.group()["epoch"] > epoch, "it serves again")
    served.until_condition("Verified", "True", "Verified")

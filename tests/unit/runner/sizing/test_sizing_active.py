"""The weights that a model reads for one token."""

from thunderfleet_runner.host.weightfiles import Tensor
from thunderfleet_runner.sizing.arithmetic import active_bytes, experts


def test_weights_that_are_read_for_a_token() -> None:
    def tensor(name: str, nbytes: int) -> Tensor:
        return Tensor(name, "f", "F16", (nbytes,), nbytes)

    dense = [tensor("model.embed_tokens.weight", 100), tensor("model.layers.0.mlp.up_proj.weight", 40)]
    assert active_bytes({}, dense) == 140, "the table is the output layer too"
    assert active_bytes({}, [*dense, tensor("lm_head.weight", 100)]) == 140
    config = {"num_experts": 8, "num_experts_per_tok": 2}
    sparse = [
        *dense,
        tensor("lm_head.weight", 100),
        tensor("model.layers.0.mlp.experts.0.up_proj.weight", 80),
        tensor("model.layers.0.mlp.switch_mlp.up_proj.weight", 800),
        tensor("model.layers.0.mlp.shared_experts.up_proj.weight", 7),
    ]
    assert active_bytes(config, sparse) == 140 + 20 + 200 + 7 and experts(config) == 8
    assert active_bytes({"text_config": config}, sparse) == 367
    assert active_bytes({"n_routed_experts": 8}, sparse) is None, "how many a token uses is not known"
    assert active_bytes({}, []) is None and experts({"num_experts": 1}) is None

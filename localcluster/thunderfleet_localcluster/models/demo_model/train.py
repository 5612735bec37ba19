"""Trains the demo's model: ``python -m thunderfleet_localcluster.models.demo_model.train FOLDER``. A few minutes on two cores.

The same seed gives the same training data in the same order. Sums of floats may be ordered differently by another version of
MLX or on another processor, so the weights may differ there in their last digits; the answers do not, which ``answers`` checks
before anything is written. Needs the packages of the runner (mlx, mlx-lm with its tokenizers).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optimizers
from mlx.utils import tree_flatten
from mlx_lm.models.qwen2 import Model, ModelArgs
from thunderfleet_lib.helpformat import HelpFormatter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from thunderfleet_localcluster.models.demo_model.conversations import CONVERSATIONS, FALLBACK, UNLISTED

SEED = 20
STEPS = 450
BATCH = 8
LEARNING_RATE = 3e-3
VOCABULARY = 512
CONTEXT = 32768
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS = 96, 192, 4, 4, 2
# Of the training questions, how many are not listed (answered by FALLBACK), and how many follow an earlier turn.
UNLISTED_SHARE, SECOND_TURN_SHARE, SYSTEM_SHARE = 0.15, 0.05, 0.05
MARGIN = 0.5
"""Least distance between the best two logits in an answer: another order of summing moves a logit by less than 1e-3."""

END_OF_TEXT, START, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SYSTEM = ("You are a helpful assistant.", "Answer briefly.", "You answer questions about Thunderfleet.")

Message = dict[str, str]


def config() -> dict[str, Any]:
    """The model's ``config.json``."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": 2,
    }


def tokenizer_config() -> dict[str, Any]:
    """The model's ``tokenizer_config.json``, with its chat template."""
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        "chat_template": TEMPLATE,
    }


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE of ``VOCABULARY`` tokens over all questions and answers; it encodes any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, START, END_OF_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for questions, answer in CONVERSATIONS for text in (*questions, answer)]
    tokenizer.train_from_iterator([*texts, *UNLISTED, FALLBACK, *SYSTEM], trainer)
    return tokenizer


def chat(source: random.Random) -> tuple[list[Message], str]:
    """One training conversation: the messages so far, and the answer to learn."""

    def pair() -> tuple[str, str]:
        if source.random() < UNLISTED_SHARE:
            return source.choice(UNLISTED), FALLBACK
        questions, answer = source.choice(CONVERSATIONS)
        return source.choice(questions), answer

    messages: list[Message] = []
    if source.random() < SYSTEM_SHARE:
        messages.append({"role": "system", "content": source.choice(SYSTEM)})
    if source.random() < SECOND_TURN_SHARE:
        question, answer = pair()
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    question, answer = pair()
    return [*messages, {"role": "user", "content": question}], answer


def encode(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """The token ids of a chat as TEMPLATE writes it, up to where the assistant's answer begins."""
    text = "".join(f"{START}{m['role']}\n{m['content']}{END_OF_TURN}\n" for m in messages) + f"{START}assistant\n"
    ids: list[int] = tokenizer.encode(text).ids
    return ids


def batch(tokenizer: Tokenizer, source: random.Random) -> tuple[mx.array, mx.array]:
    """Token ids (BATCH, length) padded at the right, and a mask of the positions that are learned: the answers."""
    rows: list[tuple[list[int], int]] = []
    for _ in range(BATCH):
        messages, answer = chat(source)
        prompt = encode(tokenizer, messages)
        rows.append((prompt + tokenizer.encode(answer + END_OF_TURN).ids, len(prompt)))
    longest = max(len(ids) for ids, _ in rows)
    padded = [ids + [0] * (longest - len(ids)) for ids, _ in rows]
    mask = [[float(begin <= at < len(ids)) for at in range(longest)] for ids, begin in rows]
    return mx.array(padded), mx.array(mask)


def loss(model: Model, ids: mx.array, mask: mx.array) -> mx.array:
    """Mean cross-entropy of the masked positions."""
    logits = model(ids[:, :-1])
    losses = nn.losses.cross_entropy(logits, ids[:, 1:])
    mean: mx.array = (losses * mask[:, 1:]).sum() / mask[:, 1:].sum()
    return mean


def train(tokenizer: Tokenizer, seed: int, steps: int, progress: bool = True) -> Model:
    """A trained model. ``progress`` prints the loss every hundred steps."""
    mx.random.seed(seed)
    source = random.Random(seed)
    model = Model(ModelArgs.from_dict(config()))
    mx.eval(model.parameters())
    schedule = optimizers.join_schedules(
        [optimizers.linear_schedule(0.0, LEARNING_RATE, 50), optimizers.cosine_decay(LEARNING_RATE, max(1, steps - 50))], [50]
    )
    optimizer = optimizers.AdamW(learning_rate=schedule, weight_decay=0.01)
    step_of = nn.value_and_grad(model, loss)
    for step in range(1, steps + 1):
        value, gradients = step_of(model, *batch(tokenizer, source))
        gradients, _ = optimizers.clip_grad_norm(gradients, 1.0)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state, value)
        if progress and (step % 100 == 0 or step == steps):
            print(f"step {step} of {steps}: loss {value.item():.4f}", flush=True)
    return model


def answer(model: Model, tokenizer: Tokenizer, messages: Sequence[Message], limit: int = 160) -> tuple[str, float]:
    """The greedy answer, and the least distance between the best two logits on the way."""
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model)
    ids, found, margin = encode(tokenizer, messages), [], float("inf")
    end = tokenizer.token_to_id(END_OF_TURN)
    for _ in range(limit):
        logits = model(mx.array([ids]), cache=cache)[0, -1]
        best = mx.sort(logits)[-2:]
        margin = min(margin, float(cast(float, (best[1] - best[0]).item())))
        ids = [int(cast(int, mx.argmax(logits).item()))]
        if ids[0] == end:
            break
        found += ids
    text: str = tokenizer.decode(found)
    return text, margin


def mistakes(model: Model, tokenizer: Tokenizer, most: int = 5) -> list[str]:
    """The first ``most`` mistakes over all trained questions: another answer, or one with a margin below MARGIN."""
    wrong: list[str] = []
    pairs = [(question, expected) for questions, expected in CONVERSATIONS for question in questions]
    for question, expected in [*pairs, *((question, FALLBACK) for question in UNLISTED)]:
        if len(wrong) == most:
            break
        text, margin = answer(model, tokenizer, [{"role": "user", "content": question}])
        if text != expected:
            wrong.append(f"{question!r}: answered {text!r}")
        elif margin < MARGIN:
            wrong.append(f"{question!r}: best two logits only {margin:.3f} apart")
    return wrong


def write(folder: Path, model: Model, tokenizer: Tokenizer) -> None:
    """Writes the four files of the model into ``folder``, which is created if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("config.json", config()), ("tokenizer_config.json", tokenizer_config())):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when every answer is correct, else 1 (nothing is written then)."""
    parser = argparse.ArgumentParser(
        prog="python -m thunderfleet_localcluster.models.demo_model.train",
        description="Train the demo's model (qwen2, float32, about 1.7 MB) and write it to a folder.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="output folder; created if it does not exist")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the initial weights and of the training data")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    tokenizer = train_tokenizer()
    model = train(tokenizer, options.seed, options.steps)
    if wrong := mistakes(model, tokenizer):
        print("nothing written: some answers are wrong; train longer (--steps)", *wrong, sep="\n", file=sys.stderr)
        return 1
    try:
        write(options.folder, model, tokenizer)
    except OSError as error:
        print(f"cannot write the model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The intake's questions and their answers."""

import os
import socket
from typing import Any

from pydantic import BaseModel

from thunderfleet_runner import framing
from thunderfleet_runner.api import embed, examine, prepare
from thunderfleet_runner.intake import limits
from thunderfleet_runner.intakeprotocol import Embed, Examine, Prepare, Up, decode_question


def serve(end: socket.socket, tokenizer: Any) -> None:
    """Answers questions one by one, each within its limits, until the supervisor closes the channel."""
    _send(end, Up())
    try:
        while True:
            question = decode_question(framing.receive_frame(end))
            if isinstance(question, Prepare | Examine | Embed):
                raw = framing.receive_frame(end)
                with limits.cpu(limits.cpu_seconds(question.limits.context_tokens)):
                    answer: BaseModel = _about(question, raw, tokenizer)
                del raw
            else:
                with limits.cpu(limits.CPU_SECONDS):
                    answer = tokenizer.parse_tools(question)
            _send(end, answer)
    except (EOFError, ConnectionError):
        return
    except MemoryError:
        # Objects of the question may be large, and libraries may be in an inconsistent state.
        os._exit(limits.EXIT_MEMORY)


def _about(question: Prepare | Examine | Embed, raw: bytes, tokenizer: Any) -> BaseModel:
    if isinstance(question, Prepare):
        return prepare.prepare(question, raw, tokenizer)
    if isinstance(question, Embed):
        return embed.embed(question, raw, tokenizer)
    return examine.examine(question, raw, tokenizer)


def _send(end: socket.socket, message: BaseModel) -> None:
    end.sendall(framing.frame(message.model_dump_json().encode()))

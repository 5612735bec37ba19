"""A group that gives scripted answers at scripted times, for the gateway's API without ranks."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from thunderfleet_crds.exchange.group import GroupState
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_runner import protocol
from thunderfleet_runner.api import examine, prepare
from thunderfleet_runner.api.request.call import Call
from thunderfleet_runner.api.request.constraints import Constraint
from thunderfleet_runner.api.service import Service, Vocabulary
from thunderfleet_runner.intakeprotocol import CallFormat, Examine, ParseTools, Prepare, ToolsParsed, decode_question

PLAN = Plan.model_validate(
    {
        "namespace": "default", "deployment": "tiny", "uid": "u", "index": 0, "epoch": 1, "model": "org/m",
        "modelPath": "/m", "backend": "none", "split": "None",
        "ranks": [{"rank": 0, "node": "n", "pod": "p", "address": "127.0.0.1", "controlPort": 1, "gatewayPort": 2,
                   "memoryBytes": 1}],
        "memory": {"contextTokens": 64, "concurrentRequests": 1, "cachedTokens": 0},
    }
)  # fmt: skip
PLAN_OF_TWO = Plan.model_validate(
    PLAN.model_dump(mode="json", by_alias=True)
    | {"backend": "ring", "split": "Tensor"}
    | {"ranks": [PLAN.ranks[0].model_dump(by_alias=True) | {"rank": n, "pod": f"p{n}", "ringAddress": "127.0.0.1",
                                                            "ringPorts": [3 + n]} for n in (0, 1)]}
)  # fmt: skip


class Script:
    """A group that gives scripted answers at scripted times. It is rank 0's link."""

    def __init__(self, plan: Plan = PLAN, rank: int = 0) -> None:
        self.phase = GroupPhase.READY
        self.service = Service(plan, rank, lambda: GroupState(uid="u", index=0, epoch=1, phase=self.phase, message="why"))
        self.service.attach(self, Vocabulary(256, True))
        self.defaults = protocol.Sampling()
        self.calls: CallFormat = "marked"
        self.prompt_tokens = 3
        self.auto = 2
        """Tokens after which every request ends; 0: only on command."""
        self.obeys = True
        """Whether a cancelled request ends at once."""
        self.turns = 0
        self.cancelled: list[str] = []
        self.requests: list[protocol.Request] = []

    async def process(self) -> "Script":
        """Its intake's process is the script itself, without limits."""
        return self

    @property
    def gone(self) -> bool:
        return False

    async def ask(self, *frames: bytes) -> bytes:
        question = decode_question(frames[0])
        if isinstance(question, Prepare):
            answer: Any = prepare.prepare(question, frames[1], self)
        elif isinstance(question, Examine):
            answer = examine.examine(question, frames[1], self)
        elif isinstance(question, ParseTools):
            answer = self.tools(question)
        else:
            raise AssertionError(f"nothing asks for {question}")
        return bytes(answer.model_dump_json().encode())

    def prompt(self, call: Call) -> protocol.Prompt:
        return protocol.Prompt.of([1] * self.prompt_tokens)

    def encode(self, text: str, *, special: bool) -> list[int]:
        return [1] * len(text.split())

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join("a" for _ in tokens)

    def grammar(self, constraint: Constraint) -> str:
        return constraint.source

    def tools(self, question: ParseTools) -> ToolsParsed:
        """Calls are the texts that begin with f."""
        calls = [{"name": text, "arguments": "{}"} for text in question.texts if text.startswith("f")]
        return ToolsParsed(calls=tuple(calls), unparsed=tuple(text for text in question.texts if not text.startswith("f")))

    async def end(self) -> None:
        """Ends nothing."""

    def announce(self, turn: int) -> None:
        self.turns = turn

    def measure(self) -> None:
        """Measures nothing."""

    def send(self, message: protocol.ToRank) -> None:
        match message:
            case protocol.Generate(request=request):
                self.requests.append(request)
                if self.auto:
                    asyncio.get_running_loop().call_soon(self.say, self.auto, True)
            case protocol.Cancel(id=name):
                self.cancelled.append(name)
                if self.obeys:
                    asyncio.get_running_loop().call_soon(self.service.deliver, self.done(name, "cancelled", 0))

    def say(self, tokens: int, done: bool) -> None:
        """Sends an answer to the newest request."""
        name = self.requests[-1].id
        for number in range(tokens):
            self.service.deliver(protocol.Token(id=name, token=number, text=f"t{number} "))
        if done:
            self.service.deliver(self.done(name, "stop", tokens))

    def done(self, name: str, reason: Literal["stop", "cancelled"], tokens: int) -> protocol.Done:
        return protocol.Done(id=name, finish_reason=reason, prompt_tokens=self.prompt_tokens, generated_tokens=tokens)

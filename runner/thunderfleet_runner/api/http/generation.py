"""One request from its body to its response: the intake, the queue, rank 0, and the writer of its dialect."""

import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from aiohttp import web
from thunderfleet_crds.names import client_names
from thunderfleet_lib.httpapi import routed
from thunderfleet_lib.httpapi.bodies import Bodies

from thunderfleet_runner import protocol
from thunderfleet_runner.api.answer.assembly import Assembly
from thunderfleet_runner.api.answer.parts import End, Part
from thunderfleet_runner.api.answer.writer import Event, Head, Writer
from thunderfleet_runner.api.anthropic.writer import MessagesWriter
from thunderfleet_runner.api.errors import ApiError
from thunderfleet_runner.api.http.admission import Admission, Full, Slot
from thunderfleet_runner.api.http.choices import merged
from thunderfleet_runner.api.http.metrics import GatewayMetrics
from thunderfleet_runner.api.http.stream import EventStream
from thunderfleet_runner.api.http.turns import Place, place_of
from thunderfleet_runner.api.intake import Intake
from thunderfleet_runner.api.openai.chat_writer import ChatWriter
from thunderfleet_runner.api.openai.responses_writer import ResponsesWriter
from thunderfleet_runner.api.service import GenerationFailed, GroupFailed, Refused, Service, Unavailable
from thunderfleet_runner.intakeprotocol import Endpoint, ModelLimits, Options, Prepared, Subject

log = logging.getLogger(__name__)

ANSWER_SECONDS = 3600.0
"""Time limit for one answer, without its wait in the queue."""
IGNORED_BYTES = 1024
"""Maximum length of the header that names ignored fields."""

RankEvent = protocol.Token | protocol.Done
Answered = Sequence[Part] | End
"""Parts of a choice that arrived together, or its end."""

_WRITERS: dict[Endpoint, tuple[str, Callable[[Head], Writer]]] = {
    "chat": ("chatcmpl-", ChatWriter),
    "completion": ("cmpl-", ChatWriter),
    "messages": ("msg_", MessagesWriter),
    "responses": ("resp_", ResponsesWriter),
}


class Generation:
    """Answers requests. Belongs to one event loop."""

    def __init__(self, service: Service, intake: Intake, admission: Admission, metrics: GatewayMetrics) -> None:
        self._service = service
        self._intake = intake
        self._admission = admission
        self._metrics = metrics
        self._bodies = Bodies()

    @property
    def limits(self) -> ModelLimits:
        """Properties of the served model against which requests are checked."""
        service = self._service
        plan = service.plan
        return ModelLimits(
            model=service.model_name,
            names=client_names(plan.namespace, plan.deployment, service.model_name),
            vocabulary=service.vocabulary.size,
            context_tokens=service.memory.context_tokens,
            chat_template=service.vocabulary.chat_template,
        )

    async def answer(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        """The response to a request. Raises ApiError."""
        arrived = time.monotonic()
        try:
            # The body is not parsed here, because hostile bytes could block this process.
            async with self._bodies.read(request) as body:
                prepared = await self._intake.prepare(endpoint, body, self.limits)
            self._service.arrival.set()
            return await self._respond(request, prepared, arrived)
        except (Refused, Unavailable, GenerationFailed, Full) as error:
            raise api_error(error) from error

    async def examine(self, request: web.Request, subject: Subject) -> web.StreamResponse:
        """The response to a question about tokens. Raises ApiError."""
        try:
            async with self._bodies.read(request) as body:
                found = await self._intake.examine(subject, body, self.limits)
        except Unavailable as error:
            raise api_error(error) from error
        return web.Response(text=found, content_type="application/json")

    async def _respond(self, request: web.Request, prepared: Prepared, arrived: float) -> web.StreamResponse:
        options = prepared.options
        prefix, make = _WRITERS[options.endpoint]
        name = f"{prefix}{uuid.uuid4().hex}"
        writer = make(Head(options, self._service.model_name, name, int(time.time()), prepared.prompt.count))
        spent = _Spent(asked=routed.ROUTED in request.headers)
        place = place_of(request.headers, self._service.plan.router)
        choices = [self._choice(prepared, name, number, place, arrived, spent) for number in range(options.choices)]
        async with contextlib.aclosing(merged(choices)) as answers:
            if options.stream:
                return await self._stream(request, options, writer, name, answers, spent)
            return await self._whole(options, writer, answers, spent)

    # --- one choice ---

    async def _choice(
        self, prepared: Prepared, name: str, number: int, place: Place, arrived: float, spent: "_Spent"
    ) -> AsyncGenerator[Answered, None]:
        """The parts of one answer, as they become known. Waits until it is admitted."""
        asked = request_of(choice_name(name, number), prepared, number)
        assembly = Assembly(prepared.options, asked.id)
        slot = await self._admission.enter(prepared.prompt.count + prepared.options.max_tokens, place=place)
        try:
            async with contextlib.aclosing(self._timed(asked, arrived, slot)) as events:
                async for event in events:
                    if isinstance(event, protocol.Done):
                        spent.prompt = event.prompt_tokens
                        spent.generated += event.generated_tokens
                    async for answered in self._assembled(assembly, event, prepared.options):
                        yield answered
        finally:
            # Freed when rank 0 is done with the request, not when a slow client has read all of it.
            if not self._service.works_on(asked.id):
                slot.free()

    async def _assembled(self, assembly: Assembly, event: RankEvent, options: Options) -> AsyncIterator[Answered]:
        text = assembly.unparsed(event)
        if text:
            yield assembly.parsed(await self._intake.parse_tools(options.tools, (text,)))
        yield assembly.ended(event)
        if isinstance(event, protocol.Token):
            yield assembly.token(event)
        else:
            parts, end = assembly.end(_complete(event))
            yield parts
            yield end

    async def _timed(self, request: protocol.Request, arrived: float, slot: Slot) -> AsyncGenerator[RankEvent, None]:
        metrics = self._metrics
        first = last = 0.0

        def ended(done: protocol.Done | None) -> None:
            slot.free()
            if done is not None:
                metrics.finished(done)

        until = time.monotonic() + ANSWER_SECONDS
        async with contextlib.aclosing(self._service.submit(request, ended)) as events:  # type: ignore[type-var]
            async for event in events:
                before, last = last, time.monotonic()
                if isinstance(event, protocol.Done):
                    metrics.whole.observe(last - arrived)
                    if event.generated_tokens > 1 and last > first:
                        metrics.rate.observe((event.generated_tokens - 1) / (last - first))
                elif last > until:
                    raise GenerationFailed(f"the response took longer than {ANSWER_SECONDS:g} s and was cancelled")
                elif not first:
                    first = last
                    metrics.first.observe(first - arrived)
                else:
                    metrics.gap.observe(last - before)
                yield event

    # --- the response ---

    async def _whole(
        self, options: Options, writer: Writer, answers: AsyncIterator[tuple[int, Answered]], spent: "_Spent"
    ) -> web.StreamResponse:
        ended = 0
        async for choice, answered in answers:
            if isinstance(answered, End):
                writer.close(choice, answered)
                ended += 1
            else:
                for part in answered:
                    writer.add(choice, part)
        if ended < options.choices:
            raise GenerationFailed("the response ended unexpectedly")
        found = headers(options)
        if spent.asked:
            found[routed.TOKENS] = spent.text
        return web.Response(body=writer.whole(), content_type="application/json", charset="utf-8", headers=found)

    async def _stream(
        self,
        request: web.Request,
        options: Options,
        writer: Writer,
        name: str,
        answers: AsyncIterator[tuple[int, Answered]],
        spent: "_Spent",
    ) -> web.StreamResponse:
        stream = EventStream(request, headers(options))
        begun = False
        async with stream.kept_alive():
            try:
                async for choice, answered in answers:
                    if not begun:
                        # Until now only comments were sent, so a router could still send the request to another group.
                        begun = True
                        stream.put(writer.begin())
                    stream.put(_written(writer, choice, answered))
                    if not isinstance(answered, End) and not self._service.queued(choice_name(name, choice)):
                        await stream.flush()
                stream.put(writer.finish())
                if writer.marks_end:
                    stream.put_done()
                if spent.asked:
                    stream.comment(f"{routed.TOKENS}: {spent.text}")
            except ConnectionError:
                raise
            except Exception as error:
                if not stream.started:
                    raise
                self._failed(stream, writer, error, spent)
        return await stream.end()

    def _failed(self, stream: EventStream, writer: Writer, error: Exception, spent: "_Spent") -> None:
        """Ends a stream with an error event."""
        if not isinstance(error, Refused | Unavailable | GenerationFailed | Full):
            log.exception("a stream failed")
        self._metrics.errors.inc()
        stream.put([writer.error(api_error(error))])
        if spent.asked and isinstance(error, GroupFailed):
            stream.comment(f"{routed.GROUP}: {routed.FAILED}")


@dataclass(slots=True)
class _Spent:
    """Tokens of all choices of a request."""

    asked: bool
    prompt: int = 0
    generated: int = 0

    @property
    def text(self) -> str:
        return f"{self.prompt},{self.generated}"


def _written(writer: Writer, choice: int, answered: Answered) -> Iterable[Event]:
    if isinstance(answered, End):
        return writer.end(choice, answered)
    return [event for part in answered for event in writer.part(choice, part)]


def choice_name(name: str, number: int) -> str:
    """The id of a choice's request to rank 0."""
    return f"{name}-{number}" if number else name


def request_of(name: str, prepared: Prepared, number: int = 0) -> protocol.Request:
    """The request for rank 0, for one choice. The choices of a request with a seed have different ones."""
    options = prepared.options
    sampling = options.sampling
    if number and sampling.seed is not None:
        sampling = sampling.model_copy(update={"seed": sampling.seed + number})
    return protocol.Request(
        id=name,
        prompt=prepared.prompt,
        max_tokens=options.max_tokens,
        stop=options.stop,
        logprobs=options.logprobs,
        top_logprobs=options.top_logprobs,
        sampling=sampling,
        grammar=prepared.grammar,
    )


def _complete(done: protocol.Done) -> protocol.Done:
    """Raises GenerationFailed for an answer that was cut: a client must not take it as complete."""
    if done.finish_reason == "cancelled":
        raise GenerationFailed("the request was cancelled")
    return done


def headers(options: Options) -> dict[str, str]:
    """The headers that name ignored and changed fields."""
    found = ignored_header(options.ignored)
    if options.clamped:
        found["X-Thunderfleet-Clamped"] = f"max_tokens={options.max_tokens}"
    return found


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """The header that names ignored fields, if there are any."""
    return {"X-Thunderfleet-Ignored": _named(names)} if names else {}


def _named(names: Sequence[str]) -> str:
    """The names, escaped, as many as fit."""
    # Any text may be a field's name; escaped names have no commas, line breaks or other alphabets.
    escaped = [quote(name[:64], safe="-_.") for name in names]
    kept = ""
    for number, name in enumerate(escaped):
        more = f", and {len(escaped) - number} more"
        longer = f"{kept}, {name}" if kept else name
        if len(longer) + len(more) > IGNORED_BYTES:
            return kept + more if kept else more.removeprefix(", and ")
        kept = longer
    return kept


def api_error(error: Exception) -> ApiError:
    """What a client gets for an error of the group."""
    match error:
        case GroupFailed():
            failed = {"Retry-After": str(error.retry_after), routed.GROUP: routed.FAILED}
            return ApiError(503, str(error), type="server_error", code="group_failed", headers=failed)
        case Unavailable():
            retry = {"Retry-After": str(error.retry_after)}
            return ApiError(503, str(error), type="server_error", code="not_ready", headers=retry)
        case Full():
            retry = {"Retry-After": str(error.retry_after)}
            return ApiError(429, str(error), type="rate_limit_error", code="queue_full", headers=retry)
        case Refused():
            return ApiError(400, str(error))
    return ApiError(500, str(error), type="server_error", code="generation_failed")

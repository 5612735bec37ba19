"""Requests for vectors of texts: the intake, the queue, rank 0, and the response."""

import asyncio
import base64
import binascii
import contextlib
import json
import uuid
from array import array
from collections.abc import Sequence

from aiohttp import web
from thunderfleet_crds.vocabulary import Split
from thunderfleet_lib.httpapi import routed
from thunderfleet_lib.httpapi.bodies import Bodies

from thunderfleet_runner import protocol
from thunderfleet_runner.api.errors import ApiError
from thunderfleet_runner.api.http.admission import Admission, Full
from thunderfleet_runner.api.http.generation import api_error, ignored_header
from thunderfleet_runner.api.http.metrics import GatewayMetrics
from thunderfleet_runner.api.http.turns import Place, place_of
from thunderfleet_runner.api.intake import Intake
from thunderfleet_runner.api.service import GenerationFailed, Refused, Service, Unavailable
from thunderfleet_runner.intakeprotocol import ModelLimits, Texts

ROWS = 64
"""Texts that are computed together, at most."""


class Embeddings:
    """Answers ``/v1/embeddings``. Belongs to one event loop."""

    def __init__(self, service: Service, intake: Intake, admission: Admission, metrics: GatewayMetrics) -> None:
        self._service = service
        self._intake = intake
        self._admission = admission
        self._metrics = metrics
        self._bodies = Bodies()

    async def answer(self, request: web.Request, limits: ModelLimits) -> web.StreamResponse:
        """The response to a request. Raises ApiError."""
        try:
            async with self._bodies.read(request) as body:
                asked = await self._intake.embed(body, limits)
            if self._service.plan.split is Split.PIPELINE:
                raise ApiError(
                    404,
                    "this group divides the layers of its model among Macs (a pipeline) and cannot compute embeddings; place "
                    "it on one Mac (spec.nodes.max: 1) or with spec.parallelism: Tensor",
                    code="model_not_found",
                )
            self._service.arrival.set()
            place = place_of(request.headers, self._service.plan.router)
            return await self._respond(asked, limits, place, counted=routed.ROUTED in request.headers)
        except (Refused, Unavailable, GenerationFailed, Full) as error:
            raise api_error(error) from error

    async def _respond(self, asked: Texts, limits: ModelLimits, place: Place, *, counted: bool) -> web.StreamResponse:
        """``counted``: a router requests the number of tokens."""
        texts = asked.texts.unpacked()
        vectors = [b""] * len(texts)
        for together in batches([len(text) for text in texts]):
            found = await self._vectors([texts[number] for number in together], asked.size, place)
            for number, vector in zip(together, found, strict=True):
                vectors[number] = _written(number, vector, asked.packed)
                # Encoding numbers takes a while, and heartbeats must not wait until all are encoded.
                await asyncio.sleep(0)
        count = asked.texts.count
        usage = {"prompt_tokens": count, "total_tokens": count}
        tail = f'], "model": {json.dumps(limits.model)}, "usage": {json.dumps(usage)}}}'
        body = b'{"object": "list", "data": [' + b", ".join(vectors) + tail.encode()
        headers = ignored_header(asked.ignored)
        if counted:
            headers[routed.TOKENS] = f"{count},0"
        return web.Response(body=body, content_type="application/json", charset="utf-8", headers=headers)

    async def _vectors(self, texts: Sequence[Sequence[int]], size: int, place: Place) -> list[bytes]:
        """The vectors of texts that are computed together, as float32."""
        request = protocol.Request(
            id=f"embd-{uuid.uuid4().hex}",
            prompt=protocol.Prompt.of(*texts, types=("text",) * len(texts)),
            max_tokens=1,
            cache=False,
            embed=size,
        )
        slot = await self._admission.enter(max(map(len, texts)), place=place)
        try:
            async with contextlib.aclosing(self._service.submit(request, lambda done: slot.free())) as events:  # type: ignore[type-var]
                async for event in events:
                    if isinstance(event, protocol.Done) and event.vectors:
                        self._metrics.prompt.inc(event.prompt_tokens)
                        return _parted(event.vectors, len(texts), 4 * size)
        finally:
            if not self._service.works_on(request.id):
                slot.free()
        raise GenerationFailed("the request was cancelled")


def batches(lengths: Sequence[int]) -> list[list[int]]:
    """The indexes of texts of these lengths, in groups that are computed together: similar lengths, because all are padded.

    The number of texts times the longest is at most EMBED_TOKENS, except that of a single text.
    """
    found: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: lengths[place]):
        last = found[-1] if found else []
        if last and len(last) < ROWS and (len(last) + 1) * lengths[place] <= protocol.EMBED_TOKENS:
            last.append(place)
        else:
            found.append([place])
    return found


def _parted(vectors: str, count: int, length: int) -> list[bytes]:
    """Each vector's bytes. Raises GenerationFailed for other than ``count`` vectors of ``length`` bytes."""
    try:
        raw = base64.b64decode(vectors, validate=True)
    except binascii.Error:
        raw = b""
    if len(raw) != count * length:
        raise GenerationFailed("rank 0 sent vectors of another number or length than requested")
    return [raw[start : start + length] for start in range(0, len(raw), length)]


def _written(place: int, vector: bytes, packed: bool) -> bytes:
    """One element of ``data`` as JSON."""
    head = f'{{"object": "embedding", "index": {place}, "embedding": '.encode()
    if packed:
        return head + b'"' + base64.b64encode(vector) + b'"}'
    values = array("f", vector)
    # Nine digits distinguish any two float32 values.
    return head + f"[{', '.join(f'{value:.9g}' for value in values)}]}}".encode()

"""Formats that answers must have: llguidance computes which tokens are allowed next, and the others are masked.

Every rank computes the same masks from the same tokens: llguidance bounds its work by counting, not by time. The intake
compiles a format first, where that may take too long; only formats that it has compiled reach a rank.

The masks of one step are computed together, by threads that do not hold the interpreter, while the device computes the logits.
"""

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import mlx.core as mx
import numpy
from llguidance import LLExecutor, LLMatcher, LLTokenizer, gbnf_to_lark
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

Kind = Literal["json", "regex", "grammar", "choice"]
COMPILE_SECONDS = 0.2
"""CPU time to compile a format and compute its first mask, on a rank too: all its answers wait for that."""
Failed = Callable[[str], None]
"""Receives the reason why a format cannot be continued."""


class Unusable(ValueError):
    """A format that is invalid, or takes too much; the text has the reason."""


class Formats:
    """Compiles formats for one model's tokens.

    The table of tokens is made by the first format: it takes a second of CPU and up to 80 MB, of which 25 MB stay, and most
    groups never need it.
    """

    def __init__(self, tokenizer: Any) -> None:
        """``tokenizer``: mlx-lm's."""
        self._tokenizer = tokenizer
        self._tokens: LLTokenizer | None = None

    @property
    def made(self) -> bool:
        """Whether the table of tokens is made."""
        return self._tokens is not None

    def make(self) -> LLTokenizer:
        """The table of tokens. Holds the interpreter while it is made. Raises Unusable for an unknown kind of tokenizer."""
        if self._tokens is None:
            # It imports transformers, which takes long unless mlxlm.importing is imported first.
            from llguidance import hf

            inner, ends = self._tokenizer._tokenizer, sorted(map(int, self._tokenizer.eos_token_ids))
            try:
                self._tokens = hf.from_tokenizer(inner, eos_token=ends)
            except MemoryError:
                raise
            except Exception as error:
                # Any error of the library: the model can still serve requests without a format.
                raise Unusable("a format cannot be forced with this model's tokenizer") from error
        return self._tokens

    @property
    def words(self) -> int:
        """The number of 32-bit words with a bit for each token."""
        return -(-int(self.make().vocab_size) // 32)

    def matcher(self, grammar: str) -> LLMatcher:
        """The beginning of an answer of this format. It may be in error. Raises Unusable."""
        return LLMatcher(self.make(), grammar, log_level=0)

    def begun(self, grammar: str) -> LLMatcher:
        """The beginning of an answer of this format, with its first mask computed once. It may be in error. Raises Unusable."""
        matcher = self.matcher(grammar)
        if not matcher.is_error():
            matcher.compute_bitmask()
        return matcher

    def check(self, grammar: str) -> None:
        """Compiles a format and computes its first mask. Raises Unusable."""
        self.make()
        began = time.process_time()
        matcher = self.begun(grammar)
        if matcher.is_error():
            raise Unusable(_sentence(matcher.get_error()))
        seconds = time.process_time() - began
        if seconds > COMPILE_SECONDS:
            raise Unusable(f"it takes {seconds:.2f} s to compile; at most {COMPILE_SECONDS:g} s are allowed")


def compiled(kind: Kind, source: str, words: Sequence[str], *, lenient: bool) -> str:
    """A format in llguidance's form, not checked yet.

    ``words``: of a choice. ``lenient``: parts of a schema that llguidance does not support are left out. Raises Unusable.
    """
    try:
        return _compiled(kind, source, words, lenient=lenient)
    except MemoryError:
        raise
    except Exception as error:
        raise Unusable(_sentence(str(error))) from error


def _compiled(kind: Kind, source: str, words: Sequence[str], *, lenient: bool) -> str:
    if kind == "json":
        # If any number of spaces were allowed, a model could write spaces forever.
        return str(
            LLMatcher.grammar_from_json_schema(
                source, overrides={"whitespace_flexible": False, "coerce_one_of": True, "lenient": lenient}
            )
        )
    if kind == "regex":
        return str(LLMatcher.grammar_from_regex(source))
    if kind == "choice":
        return str(LLMatcher.grammar_from_lark("start: " + " | ".join(map(_quoted, words))))
    return str(LLMatcher.grammar_from_lark(gbnf_to_lark.any_to_lark(source)))


def _quoted(word: str) -> str:
    """A text in Lark's grammars."""
    signs = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(signs.get(sign, sign) for sign in word) + '"'


def _sentence(error: str) -> str:
    """Llguidance's first line; the others are its state."""
    return error.partition("<state>")[0].strip().replace("\n", " ")[:300]


class Mask:
    """The format of one answer: which tokens may come next.

    ``after``: tokens after which the format begins, such as the end of the model's thoughts; empty: at once.
    """

    def __init__(self, formats: Formats, grammar: str, after: Sequence[int], failed: Failed) -> None:
        self.words = formats.words
        # The first mask of a format takes some milliseconds. The prompt is computed meanwhile.
        self._matcher = _threads().submit(formats.begun, grammar)
        self._after = list(after)
        self._recent: list[int] = []
        self._failed: Failed | None = failed
        self._begun = False
        self._step: Step | None = None

    @property
    def matcher(self) -> LLMatcher:
        """The state of the answer."""
        return self._matcher.result()

    @property
    def active(self) -> bool:
        """Whether the next token must have a mask."""
        return not self._after and self._failed is not None

    def join(self, step: "Step") -> None:
        """The next call is part of this step."""
        self._step = step

    def __call__(self, tokens: Any, logits: Any) -> Any:
        # One of mlx-lm's logits processors: called before each token, with all tokens before that one.
        step, self._step = self._step, None
        return (step or Step([(0, self)], tokens[-1:])).masked(self, logits)

    def follow(self, token: int) -> None:
        """Takes the last token before the next one. The first call has the prompt's last token, which is ignored."""
        begun, self._begun = self._begun, True
        if not begun or self._failed is None:
            return
        if self._after:
            self._recent = [*self._recent, token][-len(self._after) :]
            if self._recent == self._after:
                self._after = []
        elif not self.matcher.is_stopped() and not self.matcher.consume_token(token):
            self.fail()

    def fail(self) -> None:
        """No token is allowed, or the format is too complex now: later masks allow all tokens, and the answer is ended."""
        failed, self._failed = self._failed, None
        if failed is not None:
            failed(_sentence(self.matcher.get_error()) or "no token may follow")


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Where answers begin."""
    return ThreadPoolExecutor(2, "formats")


@functools.cache
def _executor() -> LLExecutor:
    """Threads that compute the masks of several answers, without the interpreter."""
    return LLExecutor()


class Step:
    """The masks of one step of a batch: computed together, while the device computes the step's logits.

    ``masks``: with the row of each in ``tokens``, the tokens of the step before.
    """

    def __init__(self, masks: Sequence[tuple[int, Mask]], tokens: Any) -> None:
        self._masks = masks
        self._tokens = tokens
        self._added: dict[Mask, Any] | None = None

    def masked(self, mask: Mask, logits: Any) -> Any:
        """One row of logits, (1, vocabulary), with minus infinity for the tokens that may not come."""
        if self._added is None:
            # The device starts computing the logits. The following code waits for the step before, and runs in the meantime.
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            active, packed = bitmasks(self._masks, self._tokens.tolist())
            size, dtype = logits.shape[-1], logits.dtype
            self._added = {one: addend(packed[row], size, dtype) for row, one in enumerate(active) if one.active}
        added = self._added.get(mask)
        return logits if added is None else logits + added


def bitmasks(masks: Sequence[tuple[int, Mask]], tokens: Sequence[int]) -> tuple[list[Mask], Any]:
    """The masks that the next tokens need, and for each a row of 32-bit words, with a bit for each token that may come.

    ``tokens``: of the step before; ``masks``: with the row of each.
    """
    for row, mask in masks:
        mask.follow(tokens[row])
    active = [mask for _, mask in masks if mask.active]
    if not active:
        return [], None
    packed = numpy.zeros((len(active), active[0].words), numpy.int32)
    if len(active) == 1:
        fill_next_token_bitmask(active[0].matcher, packed)
    else:
        fill_next_token_bitmask_par(_executor(), [(mask.matcher, row) for row, mask in enumerate(active)], packed)
    for row, mask in enumerate(active):
        # When the format is complete, only an end token is allowed.
        if mask.matcher.is_error() or not packed[row].any():
            mask.fail()
    return active, packed


def addend(packed: Any, size: int, dtype: Any) -> mx.array:
    """What is added to a row of ``size`` logits, (1, size): 0 for the tokens that may come, else minus infinity.

    ``packed``: the row's words. Numpy's lookup takes a fifth of the time of MLX's ``where`` with booleans.
    """
    allowed = packed.view(numpy.uint8)
    # A model may have more ids than its tokenizer.
    allowed = numpy.pad(allowed, (0, max(0, -(-size // 8) - len(allowed))))
    found: mx.array = mx.array(numpy.take(_addends(dtype), allowed, axis=0).reshape(1, -1)[:, :size]).view(dtype)
    return found


@functools.cache
def _addends(dtype: Any) -> Any:
    """For each byte of a mask, what is added to its eight logits, as unsigned words of the size of ``dtype``."""
    word = {2: mx.uint16, 4: mx.uint32}[dtype.size]
    zero, least = numpy.array(mx.array([0.0, -mx.inf]).astype(dtype).view(word))
    bits = numpy.unpackbits(numpy.arange(256, dtype=numpy.uint8)[:, None], axis=1, bitorder="little")
    return numpy.where(bits, zero, least)

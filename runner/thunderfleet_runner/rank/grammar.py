"""Formats that answers must have: llguidance says which tokens may come next, the others are masked.

Every rank computes the same masks from the same tokens: llguidance bounds its work by counting, not by time. The intake
compiles a format first, where that may take too long; only formats that it has compiled reach a rank.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import mlx.core as mx
import numpy
from llguidance import LLMatcher, LLTokenizer, gbnf_to_lark, hf

Kind = Literal["json", "regex", "grammar", "choice"]
COMPILE_SECONDS = 0.2
"""CPU time to compile a format and compute its first mask, on a rank too: all its answers wait for that."""
Failed = Callable[[str], None]
"""Receives the reason why a format cannot be continued."""


class Unusable(ValueError):
    """A format that is invalid, or takes too much; the text says why."""


class Formats:
    """Compiles formats for one model's tokens."""

    def __init__(self, tokenizer: Any) -> None:
        """``tokenizer``: mlx-lm's. Raises ValueError for one that llguidance does not know. Takes a second, and 100 MB."""
        inner = tokenizer._tokenizer
        self._tokens: LLTokenizer = hf.from_tokenizer(inner, eos_token=sorted(map(int, tokenizer.eos_token_ids)))

    @classmethod
    def of(cls, tokenizer: Any) -> "Formats | None":
        """None for a tokenizer that llguidance does not know."""
        try:
            return cls(tokenizer)
        except Exception:
            # Any library's error: the model serves everything else.
            return None

    def matcher(self, grammar: str) -> LLMatcher:
        """The beginning of an answer of this format. It may be in error."""
        return LLMatcher(self._tokens, grammar, log_level=0)

    def check(self, grammar: str) -> None:
        """Compiles a format and computes its first mask. Raises Unusable."""
        began = time.process_time()
        matcher = self.matcher(grammar)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise Unusable(_sentence(matcher.get_error()))
        seconds = time.process_time() - began
        if seconds > COMPILE_SECONDS:
            raise Unusable(f"it takes {seconds:.2f} s to compile; at most {COMPILE_SECONDS:g} s are allowed")


def compiled(kind: Kind, source: str, words: Sequence[str], *, lenient: bool) -> str:
    """A format in llguidance's form, not checked yet.

    ``words``: of a choice. ``lenient``: parts of a schema that llguidance does not know are left out. Raises Unusable.
    """
    try:
        return _compiled(kind, source, words, lenient=lenient)
    except MemoryError:
        raise
    except Exception as error:
        raise Unusable(_sentence(str(error))) from error


def _compiled(kind: Kind, source: str, words: Sequence[str], *, lenient: bool) -> str:
    if kind == "json":
        # Models that may write spaces at will can do so forever.
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


@functools.cache
def _addends(dtype: Any) -> mx.array:
    """For each byte of a mask, what is added to its eight logits: 0 or minus infinity. A third of the work of ``where``."""
    bits = numpy.unpackbits(numpy.arange(256, dtype=numpy.uint8)[:, None], axis=1, bitorder="little")
    found = mx.array(numpy.where(bits, 0.0, -numpy.inf).astype(numpy.float32)).astype(dtype)
    mx.eval(found)
    return found


class Mask:
    """A logits processor of mlx-lm for one answer.

    ``after``: tokens after which the format begins, such as the end of the model's thoughts; empty: at once.
    """

    def __init__(self, matcher: LLMatcher, after: Sequence[int], failed: Failed) -> None:
        self._matcher = matcher
        self._after = list(after)
        self._recent: list[int] = []
        self._failed: Failed | None = failed
        self._begun = False

    def __call__(self, tokens: Any, logits: Any) -> Any:
        # mlx-lm calls it before each token, with all tokens before that one.
        if self._begun:
            self._follow(int(tokens[-1].item()))
        self._begun = True
        if self._after or self._failed is None:
            return logits
        # When the format is complete, only an end token is allowed.
        allowed = numpy.frombuffer(self._matcher.compute_bitmask(), numpy.uint8)
        if self._matcher.is_error() or not allowed.any():
            self._fail()
            return logits
        size = logits.shape[-1]
        # A model may have more ids than its tokenizer, and the mask is a whole number of words.
        allowed = numpy.pad(allowed, (0, max(0, -(-size // 8) - len(allowed))))
        return logits + _addends(logits.dtype)[mx.array(allowed)].reshape(1, -1)[:, :size]

    def _follow(self, token: int) -> None:
        if self._after:
            self._recent = [*self._recent, token][-len(self._after) :]
            if self._recent == self._after:
                self._after = []
        elif not self._matcher.is_stopped() and not self._matcher.consume_token(token):
            self._fail()

    def _fail(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            failed(_sentence(self._matcher.get_error()) or "no token may follow")

"""Removing secrets from objects and logs. Pure.

Objects of kind Secret are never read. This covers secrets in other places: tokens on command lines and in headers, keys,
passwords in URLs, and environment variables. In cases of doubt, the text is removed.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

REDACTED = "[redacted]"

# `token` but not `tokens`: numbers of a model's tokens are not secret.
_SECRET_WORD = (
    r"(?:token(?!s)|secret|passw(?:or)?d|passphrase|credential|api[_-]?key|access[_-]?key|private[_-]?key|key[_-]data)"
)
_SECRET_NAME = re.compile(rf"{_SECRET_WORD}|authorization|cookie|(?:^|[_-])(?:key|auth|pat)$", re.IGNORECASE)
# Users choose these texts, so each pattern takes time in proportion to their length: a name is matched from its beginning only,
# whether it is a secret's is checked once, and no repetition gives back what it has matched.
_BEGIN, _OF_A_SECRET = r"(?<![\w.-])", rf"[\w.-]*?{_SECRET_WORD}"
_NAME = rf"{_BEGIN}(?={_OF_A_SECRET})[\w.-]++"
_OPTION = rf"{_BEGIN}(?=--{_OF_A_SECRET})[\w.-]++"
_VALUE = r"(?!\[redacted\])[^\s\"',}\\]+"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # PEM private keys, also with escaped line breaks or cut off at the end.
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), REDACTED),
    # PEM in base64.
    (re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=_-]+"), REDACTED),
    # JSON Web Tokens.
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,4096}+\.[A-Za-z0-9_-]++\.[A-Za-z0-9_-]*"), REDACTED),
    # Bootstrap tokens.
    (re.compile(r"(?<![A-Za-z0-9.-])[a-z0-9]{6}\.[a-z0-9]{16}(?![A-Za-z0-9.-])"), REDACTED),
    # Tokens of Hugging Face, OpenAI and GitHub.
    (re.compile(r"\b(?:hf_|sk-|gh[pousr]_)[A-Za-z0-9_-]{16,}"), REDACTED),
    # Authorization headers and bearer tokens.
    (re.compile(r"(authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:bearer|basic)\s+)?[^\s\"',}]+", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(r"(\b(?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{8,}", re.IGNORECASE), rf"\1{REDACTED}"),
    # Users and passwords in URLs, and what signs them.
    (re.compile(r"(://)[^\s/@\"']+@"), rf"\1{REDACTED}@"),
    (re.compile(r"([?&](?:x-amz-|x-goog-)?(?:signature|sig|key)=)[^\s&#\"',}\\]+", re.IGNORECASE), rf"\1{REDACTED}"),
)
_NAMED: tuple[tuple[re.Pattern[str], str], ...] = (
    # name="a value", name=value, "name": "value", --name value.
    (re.compile(rf"({_NAME}[\"']?\s*+[=:]\s*+)([\"'])[^\"'\n]*+\2", re.IGNORECASE), rf"\1\2{REDACTED}\2"),
    (re.compile(rf"({_NAME}\\?[\"']?\s*+[=:]\s*+\\?[\"']?){_VALUE}", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(rf"({_OPTION}[\"']?,?\s++[\"']?){_VALUE}", re.IGNORECASE), rf"\1{REDACTED}"),
)
"""What is removed because of the name before it."""
_STEMS = ("token", "secret", "passw", "passphrase", "credent", "key")
"""Each ``_SECRET_WORD`` contains one of these, after ``casefold``."""
_DROPPED = ("managedFields", "kubectl.kubernetes.io/last-applied-configuration")
"""Fields of metadata, and annotations, that only repeat others."""
_REFERENCES = ("secretName", "key")
"""Fields that name a secret and hold none."""


def redact_text(text: str) -> str:
    """``text`` without tokens, keys and passwords."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    # The patterns of names take most of the time, and most texts have no such name.
    folded = text.casefold()
    if any(stem in folded for stem in _STEMS):
        for pattern, replacement in _NAMED:
            text = pattern.sub(replacement, text)
    return text


def is_secret_name(name: str) -> bool:
    """Whether a variable or field with this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def redact_object(value: Any) -> Any:
    """A JSON value without secrets.

    Strings are redacted like texts. A string whose key is a secret's name is removed, and so is the value of an environment
    variable or a header with such a name, and what follows an option with such a name on a command line.
    """
    if isinstance(value, Mapping):
        secret_variable = "value" in value and is_secret_name(str(value.get("name", "")))
        return {
            key: REDACTED if _is_secret(key, item) or (secret_variable and key == "value") else redact_object(item)
            for key, item in value.items()
            if key not in _DROPPED
        }
    if isinstance(value, list):
        return [REDACTED if _is_for(before, item) else redact_object(item) for before, item in pairwise((None, *value))]
    return redact_text(value) if isinstance(value, str) else value


def _is_for(before: Any, item: Any) -> bool:
    """Whether ``item`` is the value of the option ``before``, which names a secret."""
    if not (isinstance(before, str) and isinstance(item, str)) or item.startswith("--"):
        return False
    return before.startswith("-") and "=" not in before and is_secret_name(before)


def _is_secret(key: str, value: Any) -> bool:
    return isinstance(value, str) and is_secret_name(key) and key not in _REFERENCES

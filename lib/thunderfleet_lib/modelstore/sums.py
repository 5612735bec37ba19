"""The list of a folder's files with their hashes, in the format of `sha256sum`. Its hash identifies a model at a URI."""

import re

MAX_BYTES = 64 * 1024
MAX_FILES = 500
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_ADVICE = "write it with `sha256sum * > SHA256SUMS` in the folder"


class InvalidSums(ValueError):
    """The list breaks a rule; the text names it."""


def parse(raw: bytes) -> dict[str, str]:
    """The hash of each file by its name. Raises InvalidSums.

    Names are those of files directly in the folder. What `sha256sum` escapes (a backslash or a newline in a name) is refused.
    """
    if len(raw) > MAX_BYTES:
        raise InvalidSums(f"SHA256SUMS has more than {MAX_BYTES} bytes; keep only the model's files in the folder")
    try:
        lines = raw.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise InvalidSums(f"SHA256SUMS is not UTF-8; {_ADVICE}") from None
    if lines[-1] == "":
        lines.pop()
    if not 0 < len(lines) <= MAX_FILES:
        raise InvalidSums(f"SHA256SUMS lists {len(lines)} files; 1 to {MAX_FILES} are allowed")
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise InvalidSums(f"line {number} of SHA256SUMS is not a hash, two spaces and a name; {_ADVICE}")
        name = match[2]
        if "/" in name or "\\" in name or name in (".", "..") or not name.isprintable():
            raise InvalidSums(f"line {number} of SHA256SUMS: {name[:80]!r} is not the plain name of a file; {_ADVICE}")
        if name in found:
            raise InvalidSums(f"line {number} of SHA256SUMS lists {name[:80]!r} again; {_ADVICE}")
        found[name] = match[1]
    return found

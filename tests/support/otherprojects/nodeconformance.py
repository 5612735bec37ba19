"""Names of the tests of Kubernetes that carry [NodeConformance], read from the sources of its end-to-end tests."""

import re
from pathlib import Path

# A text of Go: quoted, or between back quotes.
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"|`([^`]*)`')
_NODE = re.compile(r"^(\t*)(?:var _ = )?(?:[\w.]*\.)?(SIGDescribe|Describe|Context|It|ConformanceIt)\(")


def names(folder: Path) -> list[str]:
    """``Describe Context It`` of each test in the Go files of ``folder``, in order. Blocks are found by their indentation."""
    found = []
    for file in sorted(folder.glob("*.go")):
        stack: list[tuple[int, str, bool]] = []
        for line in file.read_text().splitlines():
            match = _NODE.match(line)
            if match is None:
                continue
            depth, kind = len(match[1]), match[2]
            stack = [one for one in stack if one[0] < depth]
            text = _TEXT.search(line)
            name = (text[1] or text[2] or "").replace('\\"', '"') if text else ""
            tagged = "NodeConformance" in line or any(one[2] for one in stack)
            if kind in ("It", "ConformanceIt") and tagged:
                found.append(" ".join([*(one[1] for one in stack if one[1]), name]))
            elif kind not in ("It", "ConformanceIt"):
                stack.append((depth, name, tagged))
    return found

"""Fleet files (YAML): reading and error messages with line numbers.

People write these files by hand, so a message names the file, the line, what is wrong and what is allowed. The
schema is pydantic's; lines come from the YAML nodes that the values were read from.
"""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from thunderfleet_lib.host import yamltext

from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.checks import Location, problems
from thunderfleet_localcluster.fleet.spec import Cable, Device, Fleet, Machine

_MACS = """\
# `jaccl: recorded` gives MLX on these Macs a stand-in for JACCL, because RDMA itself needs real hardware.
machines:
  - name: studio-1
    model: Mac Studio (M3 Ultra)
    memory: 96 GB
    rdma: true
    jaccl: recorded
  - name: studio-2
    model: Mac Studio (M3 Ultra)
    memory: 96 GB
    rdma: true
    jaccl: recorded
  - name: mini-1
    model: Mac mini (M4)
    memory: 32 GB
"""
_LINUX = """\
  - name: linux-1
    kind: linux
  - name: linux-2
    kind: linux
"""
_CABLES = """\
cables:
  - a: studio-1:1
    b: studio-2:1
    speed: 80
  - a: studio-1:2
    b: mini-1:1
    speed: 40
    through: OWC Thunderbolt Hub
"""
DEFAULT_FLEET = f"""\
# Two Mac Studios with RDMA enabled, joined by a Thunderbolt 5 cable; a Mac mini with Thunderbolt 4 behind a hub; and two Linux
# machines for the operator's replicas. This is the default fleet of `thunderfleet local up`.
#
{_MACS}{_LINUX}{_CABLES}"""
MACS_AND_HUB = f"{_MACS}  - name: hub\n    kind: linux\n{_CABLES}"
"""The Macs of the default fleet, of which one runs the operator, and a machine in their network that serves a model."""


class _Lines(yaml.SafeLoader):
    """A safe loader that rejects duplicate keys; PyYAML would silently keep the last one."""


def _unique(loader: _Lines, node: yaml.MappingNode) -> dict[Any, Any]:
    keys: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key is a word, not a list or mapping", key.start_mark)
        if key.value in keys:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
        keys.add(key.value)
    return dict(loader.construct_mapping(node, deep=True))


_Lines.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique)


def _line(node: yaml.Node | None, location: Location) -> int:
    """The line (from 1) of the value at ``location``, or of the nearest enclosing value that exists."""
    line = node.start_mark.line + 1 if node else 1
    for step in location:
        following: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(step):
                    line, following = key.start_mark.line + 1, value
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            following = node.value[step]
            line = following.start_mark.line + 1
        if following is None:
            break
        node = following
    return line


_WORDS = {
    "missing": "required",
    "extra_forbidden": "unknown key",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}


def _sentence(error: Any) -> tuple[Location, str]:
    location: Location = tuple(error["loc"])
    if error["type"] == "value_error":
        what = str(error["ctx"]["error"])
    else:
        what = _WORDS.get(error["type"]) or error["msg"][0].lower() + error["msg"][1:]
    if error["type"] == "extra_forbidden":
        inner = Device if "devices" in location else Machine if location[0] == "machines" else Cable
        owner = Fleet if len(location) == 1 else inner
        known = ", ".join(field.alias or name for name, field in owner.model_fields.items())
        what += f"; allowed: {known}"
    return location, what


def _where(location: Location) -> str:
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def parse_fleet(text: str, file: str = "fleet") -> Fleet:
    """Parse a fleet from YAML. Raises LocalClusterError that lists every problem with file, line and what is allowed."""
    try:
        with yamltext.parsing():
            node = yaml.compose(text, Loader=_Lines)
            value = yaml.load(text, Loader=_Lines)  # a SafeLoader
    except yamltext.InvalidYamlError as error:
        raise LocalClusterError(f"{file}:{error.line or 1}: not valid YAML: {error.problem}", usage=True) from error
    if not isinstance(value, dict):
        raise LocalClusterError(f"{file}:1: a fleet file is a mapping with the keys machines and cables", usage=True)
    try:
        fleet = Fleet.model_validate(value)
        found = list(problems(fleet))
    except ValidationError as error:
        found = [_sentence(item) for item in error.errors()]
    if found:
        lines = sorted({(_line(node, location), f"{_where(location)}: {what}") for location, what in found})
        raise LocalClusterError("\n".join(f"{file}:{line}: {what}" for line, what in lines), usage=True)
    return fleet


def load_fleet(path: Path | None) -> Fleet:
    """Load the fleet file at ``path``, or the default fleet if it is None. Raises LocalClusterError."""
    if path is None:
        return parse_fleet(DEFAULT_FLEET, "the default fleet")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LocalClusterError(f"cannot read {path}: {error}", usage=True) from error
    return parse_fleet(text, str(path))

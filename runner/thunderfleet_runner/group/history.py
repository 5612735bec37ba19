"""What a leader must still know after its own restart: that the group has served before, and how often it came back.

It is a small file in the supervisor's state folder. Losing it costs a counter, so whatever is wrong with it is not an error.
"""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from thunderfleet_crds.plan import Plan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class History:
    """Of one placement epoch."""

    was_ready: bool = False
    recoveries: int = 0


def load(path: Path, plan: Plan) -> History:
    """The history of this plan's epoch; an empty one when there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if (found["uid"], found["index"], found["epoch"]) == (plan.uid, plan.index, plan.epoch):
            return History(bool(found["was_ready"]), int(found["recoveries"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return History()


def save(path: Path, plan: Plan, history: History) -> None:
    """Replaces the file as a whole."""
    text = json.dumps({"uid": plan.uid, "index": plan.index, "epoch": plan.epoch, **asdict(history)})
    try:
        new = path.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error)

"""State that a leader keeps across its own restart: how often the group has served and recovered, and passed checks.

A small file in the supervisor's state folder. Losing it only resets a counter, so an unreadable file is no error.
"""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from thunderfleet_crds.exchange.plan import Plan, RecordedAnswer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class History:
    """One placement epoch's history."""

    was_ready: bool = False
    recoveries: int = 0
    digest: str = ""
    """Digest of the model's files that have continued passages of these ``lengths``."""
    lengths: tuple[int, ...] = ()
    recorded: tuple[RecordedAnswer, ...] = ()


def load(path: Path, plan: Plan) -> History:
    """The history of this plan's epoch; an empty one when there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if (found["uid"], found["index"], found["epoch"]) == (plan.uid, plan.index, plan.epoch):
            # A runner of an earlier version did not write the last three.
            digest, lengths = str(found.get("digest", "")), tuple(int(length) for length in found.get("lengths", ()))
            recorded = tuple(RecordedAnswer.model_validate(one) for one in found.get("recorded", ()))
            return History(bool(found["was_ready"]), int(found["recoveries"]), digest, lengths, recorded)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return History()


def save(path: Path, plan: Plan, history: History) -> None:
    """Replaces the file atomically."""
    recorded = [one.model_dump(mode="json", by_alias=True) for one in history.recorded]
    fields = {**asdict(history), "recorded": recorded}
    text = json.dumps({"uid": plan.uid, "index": plan.index, "epoch": plan.epoch, **fields})
    try:
        new = path.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as error:
        log.warning("cannot write %s: %s", path, error)

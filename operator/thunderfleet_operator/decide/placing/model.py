"""Whether any Mac has the model on its disk, and if not, which folders the agents have scanned."""

from dataclasses import dataclass
from difflib import get_close_matches

from thunderfleet_crds.reasons import Reason

from thunderfleet_operator.placement import Fleet, Mac, Request
from thunderfleet_operator.placement.eligibility import other_revisions, wanted_model, wanted_models
from thunderfleet_operator.placement.explain.explanation import NO_MACS

LISTED = 8
"""Maximum number of Macs named in a message."""
MOST_NAMES = 256
"""Models of a fleet that are compared with a name that is not among them."""
LIKENESS = 0.8
"""Names at least so similar (difflib) count as misspelled."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The condition ModelResolved."""

    found: bool
    reason: str
    message: str
    stalled: bool | None = None
    """Whether the ModelCache that fetches the model is Stalled; None without one."""


def _folders(mac: Mac) -> str:
    parents = sorted({model.path.rsplit("/", 1)[0] or "/" for model in mac.models})
    if not mac.profiled:
        return f"{mac.name} has no NodeProfile yet"
    count = f"{len(mac.models)} model{'' if len(mac.models) == 1 else 's'}"
    return f"{mac.name} has {count} in {', '.join(parents[:3])}" if parents else f"{mac.name} has no models"


def _similar(fleet: Fleet, request: Request) -> str:
    """The complete model whose name is most like the one in the spec, and where it is; "" if none is like it."""
    holders: dict[str, list[str]] = {}
    for models, names in fleet.holders:
        for model in models:
            if model.complete and model.repository and len(holders) < MOST_NAMES:
                holders.setdefault(model.repository, []).extend(names)
    found = get_close_matches(request.repository or "", holders, 1, LIKENESS)
    return f"{found[0]} is on {listed(sorted(set(holders[found[0]])))}" if found else ""


def listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def resolve(fleet: Fleet, request: Request) -> Resolution:
    """Finds the model that the spec names."""
    what = f"path {request.path}" if request.path else f"repository {request.repository}"
    if request.uri is not None:
        advice = "it is fetched when all Macs have reported and one has a model store (chart value agent.modelStore)"
        return Resolution(False, Reason.MODEL_NOT_FOUND, f"{request.uri} is on no Mac yet; {advice}")
    # By value, not by Mac: rounds of all ModelDeployments read them, and Macs with the same models share them.
    holders = [
        (names, [model for model in wanted_models(models, request) if model.complete]) for models, names in fleet.holders
    ]
    complete = [(names, models) for names, models in holders if models]
    on = list(complete[0][0]) if len(complete) == 1 else sorted(name for names, _ in complete for name in names)
    whys = [model.unsupported for _, models in complete for model in models]
    if on and all(whys):
        advice = "choose another model, or install an image with a newer mlx-lm"
        return Resolution(False, Reason.MODEL_UNSUPPORTED, f"{what} is on {listed(on)}, but {whys[0]}; {advice}")
    if on:
        folders = sorted({model.path for _, models in complete for model in models})
        return Resolution(True, Reason.FOUND, f"{what} is at {', '.join(folders[:3])} on {listed(on)}")
    return _not_found(fleet, request, what)


def _not_found(fleet: Fleet, request: Request, what: str) -> Resolution:
    """Why no Mac has the whole model."""
    macs = sorted(fleet.macs.values(), key=lambda mac: mac.name)
    found = {mac.name: wanted_model(mac, request) for mac in macs}
    partial = [(name, model) for name, models in found.items() for model in models]
    if partial:
        texts = [f"{name}: {model.path}: {model.problem or 'files are missing'}" for name, model in partial]
        return Resolution(
            False, Reason.MODEL_INCOMPLETE, f"{what} is not complete on any Mac; download it again: {listed(texts)}"
        )
    if not macs:
        return Resolution(False, Reason.NO_MACS, NO_MACS)
    others = {model.revision for mac in macs for model in other_revisions(mac, request)}
    if others:
        commits = listed(sorted(str(commit) for commit in others))
        holders = listed([mac.name for mac in macs if other_revisions(mac, request)])
        there = f"commit{'' if len(others) == 1 else 's'} {commits} on {holders}"
        return Resolution(
            False,
            Reason.MODEL_NOT_FOUND,
            f"commit {request.revision} of {what} was not found on any Mac; found: {there}. Set "
            "spec.model.revision to the full hash of a commit that was found, or to main for any commit",
        )
    looked = listed([_folders(mac) for mac in macs])
    where = f"to {request.repository} below" if request.repository else "there; the path must be below"
    advice = f"copy it {where} a folder of the chart's value agent.modelFolders"
    if similar := _similar(fleet, request):
        advice = f"{similar}: if you mean that, correct spec.model.repository; otherwise {advice}"
    return Resolution(False, Reason.MODEL_NOT_FOUND, f"{what} was not found on any Mac: {looked}; {advice}")

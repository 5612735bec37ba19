"""``why``: shows the path from a ModelDeployment to the first cause of its state."""

from thunderfleet_view.facts import Picture
from thunderfleet_view.why import State, Why

from thunderfleet_cli.view.page import BAD, DOUBTFUL, GOOD, Page
from thunderfleet_cli.view.reports.status import unread


def show(found: Why, picture: Picture, page: Page) -> None:
    """The path as a tree, then the cause."""
    styles = {State.OK: GOOD, State.PROBLEM: BAD, State.WAITING: DOUBTFUL, State.UNKNOWN: DOUBTFUL, State.NOTE: DOUBTFUL}
    for step in found.steps:
        since = f" (since {step.since})" if step.since else ""
        page.cells("  " * step.indent, (f"{step.state.value:<8}", styles[step.state]), f"{step.subject}: {step.text}{since}")
    page.line()
    if found.cause is not None:
        page.cells(("cause: ", "bold"), f"{found.cause.subject}: {found.cause.text}")
    elif any(step.state is State.PROBLEM for step in found.steps):
        page.line("the model serves; the problems above do not affect it now")
    elif any(step.state is State.NOTE for step in found.steps):
        page.line("the model serves; the notes above do not affect it")
    else:
        page.line("the model serves and nothing is wrong")
    unread(picture, page)

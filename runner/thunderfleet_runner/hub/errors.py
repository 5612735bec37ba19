"""Maps errors of the hub to a reason, a message, and the time of the next attempt."""

from dataclasses import dataclass

from thunderfleet_crds.reasons import Reason

MAX_RETRY_SECONDS = 3600


class HubFault(Exception):
    """Why the hub gave no usable answer. ``retry_seconds``: the delay that it requests."""

    def __init__(self, reason: Reason, message: str, retry_seconds: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_seconds = retry_seconds


@dataclass(frozen=True)
class Answer:
    """A refusal of the hub. ``code``: of its header X-Error-Code."""

    status: int
    code: str | None = None
    retry_after: str | None = None
    message: str = ""


def of_status(answer: Answer, repository: str, revision: str, endpoint: str, *, with_token: bool) -> HubFault:
    """The fault of an HTTP status. ``with_token``: whether the request had one."""
    what, token = f"repository {repository}", "with the token of the Secret" if with_token else "without a token"
    match answer.status, answer.code:
        case _, "GatedRepo":
            return HubFault(Reason.GATED, f"{what} is gated: {endpoint} refuses access {token}; {_ask(with_token)}")
        case _, "RevisionNotFound":
            return HubFault(Reason.REVISION_NOT_FOUND, f"{what} has no revision {revision}")
        case _, "EntryNotFound":
            return HubFault(
                Reason.HUB_FAILED, f"{endpoint} lists a file of {repository} that it does not have; the download is tried again"
            )
        case 429, _:
            seconds = retry_seconds(answer.retry_after)
            when = f"in {seconds} s" if seconds is not None else "later"
            return HubFault(
                Reason.RATE_LIMITED, f"{endpoint} answers 429, too many requests; the next attempt is {when}", seconds
            )
        case 401, _ if with_token and answer.code != "RepoNotFound":
            return HubFault(
                Reason.TOKEN_REFUSED, f"{endpoint} does not accept the token of the Secret; put a valid one into it"
            )
        case (401, _) | (404, _) | (_, "RepoNotFound"):
            advice = (
                "check the name, and that the token's account has access" if with_token else "check the name; if it is private"
            )
            more = "" if with_token else ", name a Secret with a token (tokenSecret)"
            return HubFault(Reason.REPOSITORY_NOT_FOUND, f"{endpoint} has no {what} {token}; {advice}{more}")
        case 403, _:
            said = f": {answer.message}" if answer.message else ""
            return HubFault(Reason.GATED, f"{endpoint} refuses access to {what} {token}{said}; {_ask(with_token)}")
        case status, _:
            seconds = retry_seconds(answer.retry_after)
            return HubFault(Reason.HUB_FAILED, f"{endpoint} answers with status {status}", seconds)


def _ask(with_token: bool) -> str:
    if with_token:
        return "request access on the repository's page with the account of the token"
    return "request access on its page, and name a Secret with a token of that account (tokenSecret)"


def retry_seconds(text: str | None) -> int | None:
    """The seconds of a Retry-After header; None for a date, which the hub does not send."""
    if text is None or not text.strip().isdecimal():
        return None
    return min(int(text), MAX_RETRY_SECONDS)

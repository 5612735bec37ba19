"""What counts as a valid property list for launchd."""

import plistlib

import pytest
from thunderfleet_controlplane.daemons.keys import problems

GOOD = {"Label": "io.example.job", "ProgramArguments": ["/usr/bin/true", "x"], "KeepAlive": {"SuccessfulExit": False}}


def test_a_valid_job_has_no_problem() -> None:
    assert problems(plistlib.dumps(GOOD), "io.example.job.plist") == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"AbandonProcessGroups": True}, "AbandonProcessGroups is not a key of launchd.plist(5)"),
        ({"RunAtLoad": 1}, "RunAtLoad is 1, not bool"),
        ({"ExitTimeOut": "60"}, "ExitTimeOut is '60', not int"),
        ({"ExitTimeOut": True}, "ExitTimeOut is True, not int"),
        (
            {"ProgramArguments": ["true"]},
            "the program is not an absolute path; launchd's PATH is /usr/bin:/bin:/usr/sbin:/sbin",
        ),
        ({"ProgramArguments": []}, "Program or ProgramArguments is missing"),
        ({"ProgramArguments": ["/bin/a", 1]}, "ProgramArguments is ['/bin/a', 1], not array of strings"),
        ({"ProcessType": "Realtime"}, "ProcessType Realtime is not one of Background, Standard, Adaptive, Interactive"),
        ({"SoftResourceLimits": {"Files": 1}}, "SoftResourceLimits has the unknown limit Files"),
        ({"KeepAlive": {"Success": True}}, "KeepAlive has the unknown condition Success"),
        ({"Label": "io.example.other"}, "the file is io.example.job.plist, not io.example.other.plist"),
    ],
)
def test_each_mistake_is_named(change: dict[str, object], problem: str) -> None:
    assert problems(plistlib.dumps({**GOOD, **change}), "io.example.job.plist") == [problem]

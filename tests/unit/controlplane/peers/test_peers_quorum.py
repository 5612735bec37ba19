"""The members of etcd, and which of them may leave."""

import pytest
from thunderfleet_controlplane.install.peers.quorum import Member, hosts_in, initial_cluster, parse, why_not_without, with_url

ONE, TWO, THREE, FOUR = (Member(number, f"m{number}", (f"https://10.0.0.{number}:2380",)) for number in (1, 2, 3, 4))
LEARNER = Member(5, "", ("https://10.0.0.5:2380",), learner=True)


def test_members_are_read_from_an_answer() -> None:
    answer = {
        "members": [{"ID": "18446744073709551615", "name": "a", "peerURLs": ["https://[fd00::1]:2380"], "isLearner": True}]
    }
    (found,) = parse(answer)
    assert (found.id, found.hosts, found.learner) == (2**64 - 1, ("fd00::1",), True)
    assert str(parse({"members": [{"ID": "1", "peerURLs": ["https://a:1"]}]})[0]) == "a member that has not started (a)"


@pytest.mark.parametrize("answer", [{}, {"members": None}, {"members": [1]}, {"members": [{}]}, {"members": [{"ID": "x"}]}])
def test_other_answers_are_refused(answer: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        parse(answer)


def test_a_new_member_names_all() -> None:
    url = "https://10.0.0.5:2380"
    found = initial_cluster([ONE, TWO, LEARNER], "member-five", url)
    assert found == f"m1=https://10.0.0.1:2380,m2=https://10.0.0.2:2380,member-five={url}"
    assert hosts_in(found) == ("10.0.0.1", "10.0.0.2", "10.0.0.5") and hosts_in("") == ()
    assert with_url([ONE, LEARNER], url) == LEARNER and with_url([ONE], url) is None


@pytest.mark.parametrize(
    ("members", "leaving", "down", "says"),
    [
        ([ONE], ONE, [], ""),
        ([ONE, TWO], TWO, [], ""),
        ([ONE, TWO], TWO, [ONE], "1 of 2 control planes work now, and 2 are needed; not answering: m1 (10.0.0.1)"),
        ([ONE, TWO], TWO, [TWO], "1 of 2 control planes work now"),
        ([ONE, TWO, THREE], THREE, [], ""),
        ([ONE, TWO, THREE], THREE, [THREE], ""),
        ([ONE, TWO, THREE], THREE, [TWO], "1 of 2 control planes would work then, and 2 are needed; not answering: m2"),
        ([ONE, TWO, THREE, FOUR], FOUR, [FOUR], ""),
        ([ONE, TWO, THREE, FOUR], FOUR, [THREE], ""),
        ([ONE, LEARNER], LEARNER, [LEARNER], ""),
        ([ONE, TWO, LEARNER], TWO, [LEARNER], ""),
    ],
)
def test_who_may_leave(members: list[Member], leaving: Member, down: list[Member], says: str) -> None:
    alive = {one.id for one in members if one not in down}
    found = why_not_without(members, leaving, alive)
    assert found.startswith(says) if says else found == ""

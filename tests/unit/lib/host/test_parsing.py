"""Parsers of command output: what they quote when it is not what they expect."""

import pytest
from thunderfleet_lib.host.parsing import ParseError, clean, require_text, require_whole
from thunderfleet_lib.rdma import parse


def problem(error: pytest.ExceptionInfo[ParseError]) -> str:
    return error.value.problem


@pytest.mark.parametrize(("limit", "found"), [(3, "abc"), (2, "a…"), (1, "…")])
def test_text_is_cut_to_the_limit(limit: int, found: str) -> None:
    assert clean("abc", limit) == found


@pytest.mark.parametrize("value", [None, 7, "", " \x1b\t "])
def test_no_text_is_none(value: object) -> None:
    assert clean(value, 10) is None


def test_a_character_that_is_not_text_is_quoted_with_sixty_before_it() -> None:
    with pytest.raises(ParseError) as error:
        require_text("x", "0" + "1" * 59 + "2" + "\x00")
    assert problem(error) == f"printed a character that is not text (0x00 after {'1' * 59 + '2'!r})"
    with pytest.raises(ParseError) as error:
        require_text("x", "ab\x0e")
    assert problem(error) == "printed a character that is not text (0x0e after 'ab')"
    require_text("x", "a\tb\r\n\x1b[0m")


def test_a_line_without_an_end_is_quoted() -> None:
    require_whole("x", "")
    require_whole("x", "whole\n")
    with pytest.raises(ParseError) as error:
        require_whole("x", "whole\nha lf")
    assert problem(error) == "ends in the middle of a line: ha lf"
    with pytest.raises(ParseError) as error:
        require_whole("x", "whole\n  ")
    assert problem(error) == "ends in the middle of a line: an empty one"


@pytest.mark.parametrize("text", ["", "rdma", "enabled disabled", "not enabled", "no: disabled", "enabled: false"])
def test_a_switch_that_is_neither_on_nor_off(text: str) -> None:
    with pytest.raises(ParseError) as error:
        parse.parse_status(text)
    assert problem(error) == f"printed neither enabled nor disabled: {text or 'nothing'}"


@pytest.mark.parametrize(("text", "said"), [("", "nothing"), ("some\nerror", "some error")])
def test_no_table_of_devices(text: str, said: str) -> None:
    with pytest.raises(ParseError) as error:
        parse.parse_devices(text)
    assert problem(error) == f"printed no table of devices: {said}"
    with pytest.raises(ParseError) as error:
        parse.parse_devinfo(text)
    assert problem(error) == f"describes no device: {said}"


LONGEST = "d" * 64


def devinfo(name: str, *, whole: bool = True, gid: str = "::ffff:169.254.1.2") -> str:
    lines = [f"hca_id:\t{name}", "\tport:\t1", "\t\tstate:\tPORT_ACTIVE (4)"]
    if whole:
        lines += [f"\t\tGID[  0]:\t{gid}", "\t\tlink_layer:\tEthernet"]
    return "\n".join(lines) + "\n"


def test_the_longest_name_is_kept_whole() -> None:
    table = f"    device          \t   node GUID\n    ------          \t----------------\n    {LONGEST}\t0011223344556677\n"
    assert parse.parse_devices(table) == (LONGEST,)
    (found,) = parse.parse_devinfo(devinfo(LONGEST))
    assert found == parse.DeviceInfo(LONGEST, "PORT_ACTIVE", "::ffff:169.254.1.2")


def test_the_truncated_device_is_named() -> None:
    with pytest.raises(ParseError) as error:
        parse.parse_devinfo(devinfo("first") + devinfo("second") + devinfo(LONGEST, whole=False))
    assert problem(error) == f"is truncated in the description of {LONGEST}"


@pytest.mark.parametrize("gid", ["fe80::1", "::ffff:0.0.0.0", "not-an-address", "::ffff:1.2.3"])
def test_a_gid_that_maps_no_ipv4_address(gid: str) -> None:
    (found,) = parse.parse_devinfo(devinfo("rdma_en2", gid=gid))
    assert found.gid is None


def test_a_gid_in_another_notation() -> None:
    (found,) = parse.parse_devinfo(devinfo("rdma_en2", gid="0:0:0:0:0:ffff:a9fe:0102,"))
    assert found.gid == "::ffff:169.254.1.2"


def test_a_device_without_a_printable_name_is_skipped() -> None:
    found = parse.parse_devinfo(devinfo("\x7f") + devinfo("rdma_en3"))
    assert [device.name for device in found] == ["rdma_en3"]

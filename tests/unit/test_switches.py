"""Switches: defaults, spellings, errors."""

import re

import pytest

from sglang_gemma4.patching import switches


def test_defaults_hold_when_nothing_is_set() -> None:
    for switch in switches.SWITCHES.values():
        assert switches.is_on(switch.name, {}) is switch.default
        assert switches.is_on(switch.name, {switch.name: ""}) is switch.default


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("ON", True), (" yes ", True), ("0", False), ("False", False), ("off", False), ("no", False)],
)
def test_spellings(text: str, value: bool) -> None:
    assert switches.is_on(switches.MASTER, {switches.MASTER: text}) is value


def test_a_value_that_is_not_boolean_is_named_with_its_remedy() -> None:
    with pytest.raises(switches.SwitchError, match=r"SGLANG_GEMMA4_STRICT='maybe' is not a boolean; set it to 1 or 0"):
        switches.is_on(switches.STRICT, {switches.STRICT: "maybe"})


def test_a_meaning_is_one_short_sentence_and_the_table_has_forty_rows() -> None:
    assert len(switches.SWITCHES) <= 40
    for switch in switches.SWITCHES.values():
        for meaning in filter(None, (switch.meaning, switch.zero)):
            assert len(meaning) <= 100, switch.name
            assert meaning.endswith("."), switch.name
            assert not re.search(r"[.!?] ", meaning), f"{switch.name}: one sentence"
    groups = [switch.group for switch in switches.SWITCHES.values()]
    assert list(dict.fromkeys(groups)) == list(switches.GROUPS), "in the order of the groups, none empty"
    assert groups == sorted(groups, key=switches.GROUPS.index)


def test_check_all_finds_bad_values_and_misspelt_names() -> None:
    found = switches.check_all({"SGLANG_GEMMA4_STRICT": "2", "SGLANG_GEMMA4_ROUTERSCALE": "0", "HOME": "/"})
    assert len(found) == 2
    assert "SGLANG_GEMMA4_STRICT='2'" in found[0]
    assert found[1].startswith("SGLANG_GEMMA4_ROUTERSCALE is not a switch of this package; unset it.")

"""The table of SGLang's flags: every field of ServerArgs has one verdict, what works names tests, and the docs are the table."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from sglang_gemma4 import cli
from sglang_gemma4.diagnostics import flag_table
from sglang_gemma4.diagnostics.flag_table import Refused

ROOT = Path(__file__).parents[2]


def differences(fields: Iterable[str]) -> list[str]:
    """Fields without a verdict or with two, and verdicts on what is no field."""
    named = Counter(flag for group in flag_table.groups() for flag in group.flags)
    known = set(fields)
    return [
        *(f"{name} has no verdict; put it into a group of {flag_table.TABLE.name}" for name in known - set(named)),
        *(f"{name} has {times} verdicts" for name, times in named.items() if times > 1),
        *(f"SGLang has no {name}; take it out of {flag_table.TABLE.name}" for name in set(named) - known),
    ]


def test_every_flag_of_sglang_has_a_verdict() -> None:
    from sglang.srt.arg_groups.arg_utils import record_fields
    from sglang.srt.server_args import ServerArgs

    fields = [one.name for one in record_fields(ServerArgs)]
    assert differences(fields) == []
    assert differences([*fields, "brand_new"]) == [f"brand_new has no verdict; put it into a group of {flag_table.TABLE.name}"]
    assert differences(fields[1:]) == [f"SGLang has no {fields[0]}; take it out of {flag_table.TABLE.name}"]


@pytest.mark.parametrize("group", flag_table.groups(), ids=lambda group: group.name)
def test_a_verdict_says_what_it_stands_on(group: flag_table.Group) -> None:
    assert group.verdict in flag_table.VERDICTS
    if group.verdict != "works":
        assert not group.tests
        assert group.why
        return
    text = "".join((ROOT / path).read_text() for path in group.tests)
    for flag in group.flags:
        named = flag in group.tried or flag in text or flag.replace("_", "-") in text
        assert named, f"none of {group.tests} names {flag}"


@pytest.mark.parametrize("example", flag_table.refused(), ids=lambda example: flag_table.typed(example.given))
def test_a_refusal_is_one_line_that_names_the_value(example: Refused) -> None:
    assert (example.by == "sglang") == bool(example.said)
    assert "\n" not in example.line
    if example.by != "sglang":
        assert any(
            flag_table.typed({name: value}).partition(" ")[0] in example.line or str(value) in example.line
            for name, value in example.given.items()
        )


def test_an_example_that_is_not_refused_is_an_error() -> None:
    with pytest.raises(ValueError, match="is not refused by the check of values; correct the row"):
        _ = Refused({"page_size": 16}).line


def test_the_docs_are_the_table() -> None:
    written = (ROOT / "docs" / "flags.md").read_text()
    assert flag_table.markdown() in written, "run `sglang-gemma4 flags --markdown` and put it into docs/flags.md"


def test_the_command_tells_of_one_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["flags", "--page-size"]) == 0
    assert "refused: --page-size 0: --page-size 0 is below 1" in capsys.readouterr().out
    assert cli.main(["flags", "no-such-flag"]) == 2
    assert "no-such-flag is no flag of the supported SGLang" in capsys.readouterr().err
    assert cli.main(["flags"]) == 0
    assert capsys.readouterr().out.count("\n") == len(flag_table.groups())

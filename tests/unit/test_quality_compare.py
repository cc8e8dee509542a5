"""Comparing two files of eval, and the gate: what passes, what ends with status 1, what is refused."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4.patching.switches import SWITCHES
from sglang_gemma4.quality import gates
from sglang_gemma4.quality.command import add_commands

SERVER: dict[str, Any] = {"sglang": "0.5.23", "sglang_gemma4": None, "patches": {}, "settings": {"dtype": "float32"}}
HEADER: dict[str, Any] = {"kind": "header", "model": "m", "concurrency": 1, "dataset": {"name": "world"}, "evaluator": {}, "server": SERVER}


def answer(index: int, right: bool, drafts: int | None = None) -> dict[str, Any]:
    return {
        "kind": "row",
        "id": f"q-{index}",
        "hash": f"h-{index}",
        "text": "A" if right else "B",
        "correct": right,
        "token_ids": [1 if right else 2, 11],
        "tokens": ["A" if right else "B", "<turn|>"],
        "logprobs": [-0.7, -0.1],
        "runner_up": [[2 if right else 1, -0.71], [3, -5.0]],
        "verify_steps": None if drafts is None else 10,
        "correct_drafts": drafts,
    }


def window(index: int, logprobs: list[float | None]) -> dict[str, Any]:
    return {"kind": "row", "id": f"window-{index}", "hash": f"h-{index}", "token_ids": [*range(len(logprobs))], "logprobs": logprobs}


def write(path: Path, rows: list[dict[str, Any]], kind: str = "mmlu", summary: bool = True) -> Path:
    lines = [{**HEADER, "eval": kind}, *rows, *([{"kind": "summary"}] if summary else [])]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def compare(*arguments: object) -> int:
    """The command as the command line runs it; its errors are raised."""
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    parsed = parser.parse_args(["compare", *map(str, arguments)])
    return int(parsed.run(parsed))


def test_a_run_against_itself_holds_every_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = write(tmp_path / "a", [answer(i, i > 2) for i in range(20)])
    for name in (None, *SWITCHES):
        assert compare(same, same, *(("--gate",) if name is None else ("--switch", name))) == 0
    assert "identical answers 1.0000, characters agreeing 1.0000" in capsys.readouterr().out


def test_a_loss_beyond_noise_ends_with_status_1_and_says_what_exceeded_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a", [answer(i, True) for i in range(40)])
    b = write(tmp_path / "b", [answer(i, i >= 10) for i in range(40)])
    assert compare(a, b) == 0, "without a gate a comparison only reports"
    assert compare(a, b, "--gate") == 1
    out = capsys.readouterr().out
    assert "accuracy: B loses 0.2500 (p = 0.001953 < 0.05), allowed 0" in out
    assert "identical answers: 0.7500, at least 0.95 asked" in out
    assert "q-0 token 0: A 'A' -0.7000 (the other's -0.7100) | B 'B' -0.7000 (the other's -0.7100)" in out
    assert compare(b, a, "--switch", "SGLANG_GEMMA4_MODEL_FIXES") == 0, "a correctness switch may change answers for the better"
    assert compare(a, b, "--switch", "SGLANG_GEMMA4_MODEL_FIXES") == 1, "but not for the worse"


def test_a_loss_within_noise_passes_where_answers_may_change(tmp_path: Path) -> None:
    a = write(tmp_path / "a", [answer(i, i % 10 != 1) for i in range(40)])
    b = write(tmp_path / "b", [answer(i, i % 8 != 0) for i in range(40)])
    assert compare(a, b, "--switch", "SGLANG_GEMMA4_MODEL_FIXES") == 0


def test_accept_length_is_gated_where_both_have_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = {n: write(tmp_path / str(n), [answer(0, True, n), answer(1, True, n)]) for n in (None, 20, 18)}
    assert compare(paths[20], paths[18], "--gate") == 1
    assert "accept length: B loses 0.200 tokens per step, allowed 0.1" in capsys.readouterr().out
    assert compare(paths[20], paths[20], "--gate") == 0
    assert compare(paths[None], paths[20], "--gate") == 0
    assert compare(paths[None], paths[None], "--gate") == 0


def test_speculation_that_is_lost_exceeds_every_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (write(tmp_path / str(n), [answer(0, True, n)]) for n in (20, None))
    for switch in ("SGLANG_GEMMA4", "SGLANG_GEMMA4_MODEL_FIXES"):
        assert compare(a, b, "--switch", switch) == 1
        assert "accept length: A has 3.000 tokens per step, B has none: it ran without speculative decoding" in capsys.readouterr().out


def test_tokens_that_were_not_recorded_are_not_called_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of --no-logprobs, in both files or in one."""
    bare: dict[str, Any] = {"token_ids": [], "tokens": [], "logprobs": [], "runner_up": []}
    full = write(tmp_path / "full", [answer(0, True), answer(1, False)])
    a = write(tmp_path / "a", [{**answer(i, i < 1), **bare, "text": "one way"} for i in range(2)])
    b = write(tmp_path / "b", [{**answer(i, i < 1), **bare, "text": "another"} for i in range(2)])
    for other in (a, full):
        assert compare(other, b) == 0
        out = capsys.readouterr().out
        assert "differing tokens: not recorded" in out
        assert "log-probability: not recorded" in out
        assert "tokens differ in" not in out
        assert compare(other, b, "--json") == 0
        made = json.loads(capsys.readouterr().out)
        assert (made["first_differences"], made["largest_logprob_drift"]) == (None, None)
    assert compare(full, full) == 0
    out = capsys.readouterr().out
    assert "tokens differ in 0 answers" in out
    assert "log-probability: 0.000000" in out


def test_answers_that_share_no_token_have_no_drift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(write(tmp_path / "a", [answer(0, True)]), write(tmp_path / "b", [answer(0, False)])) == 0
    out = capsys.readouterr().out
    assert "log-probability: no token shared" in out
    assert "tokens differ in 1 answers, first at" in out


def test_json_holds_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a", [answer(i, i < 7) for i in range(10)])
    b = write(tmp_path / "b", [answer(i, 2 <= i < 8) for i in range(10)])
    assert compare(a, b, "--json", "--gate") == 1
    made = json.loads(capsys.readouterr().out)
    assert made["table"] == [[5, 2], [1, 2]]
    assert (made["a"]["accuracy"], made["b"]["accuracy"], made["p_value"]) == (0.7, 0.6, 1.0)
    assert (made["identical_answers"], len(made["first_differences"])) == (0.7, 3)
    assert made["gate"]["exceeded"] == ["identical answers: 0.7000, at least 0.95 asked"]


def test_texts_are_paired_by_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a", [window(i, [None, -1.0, -2.0]) for i in range(8)], "text")
    b = write(tmp_path / "b", [window(i, [None, -1.0, -2.2]) for i in range(8)], "text")
    assert compare(a, b, "--gate") == 1
    out = capsys.readouterr().out
    assert "B loses +0.100000 nats per token over 16 tokens (95% interval +0.100000 to +0.100000)" in out
    assert "nats per token: B loses 0.100000, allowed 0.001" in out
    assert compare(b, a, "--gate") == 0


def test_settings_that_differ_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write(tmp_path / "a", [answer(0, True)]), write(tmp_path / "b", [answer(0, True)])
    header, *rest = b.read_text().splitlines()
    server = {**SERVER, "settings": {"dtype": "bfloat16"}, "patches": {"triple_norm": "active"}}
    b.write_text("\n".join([json.dumps({**json.loads(header), "server": server}), *rest]))
    assert compare(a, b) == 0
    out = capsys.readouterr().out
    assert "differs: dtype float32 | bfloat16" in out
    assert "triple_norm" not in out, "A's server does not report its patches"


def lines_of(tmp_path: Path, name: str, *lines: object) -> Path:
    path = tmp_path / name
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_runs_that_do_not_pair_are_refused(tmp_path: Path) -> None:
    ten = write(tmp_path / "ten", [answer(i, True) for i in range(10)])
    other = write(tmp_path / "other", [answer(i, True) for i in range(3, 12)])
    changed = write(tmp_path / "changed", [{**answer(i, True), "hash": "other"} for i in range(10)])
    text = write(tmp_path / "text", [window(0, [-1.0])], "text")
    cut = write(tmp_path / "cut", [answer(0, True)], summary=False)
    twice = write(tmp_path / "twice", [answer(0, True), answer(0, True)])
    empty = write(tmp_path / "empty", [])
    for a, b, said in [
        (ten, other, r"3 of 10 ids of \S+ are missing in \S+, 2 of 9 the other way"),
        (ten, changed, "10 of 10 questions were put differently"),
        (ten, text, "eval mmlu, .* of eval text"),
        (ten, cut, r"unfinished \(1 rows, no summary\)"),
        (ten, twice, "twice the same id"),
        (empty, empty, "0 of 0 ids"),
        (ten, tmp_path / "absent", "is not there"),
        (ten, lines_of(tmp_path, "no header", answer(0, True)), "does not begin with the header"),
        (ten, lines_of(tmp_path, "not json", HEADER, "{'kind'\n", answer(0, True)), "not json:2 is not a JSON line"),
        (ten, lines_of(tmp_path, "not objects", "[1]\n"), "not objects:1 is not a JSON object"),
    ]:
        with pytest.raises(ValueError, match=said) as error:
            compare(a, b)
        assert "\n" not in str(error.value)


GOOD = "[default]\naccuracy_loss=0\np_value=0.05\nidentical_answers=1\naccept_length_loss=0\nnats_per_token_loss=0\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "[SGLANG_GEMMA4_ROUTER_SCAL]\np_value=0.1\n", r"\[SGLANG_GEMMA4_ROUTER_SCAL\] is not a switch"),
        (GOOD + "[SGLANG_GEMMA4]\naccuracy=0.1\n", r"\[SGLANG_GEMMA4\] accuracy is unknown"),
        (GOOD + "identical_answers=", "is not TOML"),
        (GOOD.replace("=1", "=1.5"), r"identical_answers = 1.5; expected a number from 0 to 1"),
        (GOOD.replace("=1", "=true"), "identical_answers = True; expected a number"),
        (GOOD.replace("=1", "=nan"), "identical_answers = nan; expected a number"),
        (GOOD.replace("p_value=0.05\n", ""), r"\[default\] lacks p_value"),
        ("default = 1\n", "stands outside a section"),
    ],
)
def test_a_gate_file_that_says_something_else_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "gates.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        gates.read(path)


def test_gates_of_a_section_take_what_they_leave_out_from_the_default(tmp_path: Path) -> None:
    path = tmp_path / "gates.toml"
    path.write_text(GOOD + "[SGLANG_GEMMA4_NORMS]\nidentical_answers = 0.5\n")
    assert gates.read(path, "SGLANG_GEMMA4_NORMS") == {**gates.read(path), "identical_answers": 0.5}
    assert gates.read(path, "SGLANG_GEMMA4_REPORT") == gates.read(path)
    with pytest.raises(ValueError, match="--switch SGLANG_GEMMA4_NONE is not a switch"):
        gates.read(path, "SGLANG_GEMMA4_NONE")
    with pytest.raises(ValueError, match="cannot be read"):
        gates.read(tmp_path / "absent")

"""eval and compare through the command line, on one real server with MTP."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_gemma4 import cli
from sglang_gemma4.tiny import dialogues, world
from tests.harness.live_server import open_server

MODEL = "tiny-e2b"
MTP = [
    *("--speculative-algorithm", "NEXTN", "--speculative-draft-model-path", f"{MODEL}-assistant"),
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
    "--sleep-on-idle",  # as in live_server: beside it another process of tests has one core more
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the tiny E2B with its assistant."""
    with open_server(tmp_path_factory.mktemp("server"), MODEL, MTP) as running:
        yield running.url


@pytest.fixture(scope="module")
def runs(url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One finished file of each eval."""
    folder = tmp_path_factory.mktemp("runs")
    story = folder / "story.txt"
    story.write_text(dialogues.story_text(random.Random(3), world.PEOPLE[0], 40))
    paths = {kind: folder / f"{kind}.jsonl" for kind in ("mmlu", "colors", "text")}
    asked = ["--url", url, "--out"]
    assert cli.main(["eval", "mmlu", "--dataset", "world", "--questions", "32", *asked, str(paths["mmlu"])]) == 0
    assert cli.main(["eval", "colors", "--questions", "12", *asked, str(paths["colors"])]) == 0
    assert cli.main(["eval", "text", str(story), "--window", "256", "--stride", "128", *asked, str(paths["text"])]) == 0
    return paths


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_tiny_model_knows_its_world_and_its_colours(runs: dict[str, Path]) -> None:
    for kind, number, least in (("mmlu", 32, 30), ("colors", 12, 11)):
        header, *rows, summary = lines(runs[kind])
        assert (header["eval"], header["model"], len(rows)) == (kind, MODEL, number)
        assert header["server"]["patches"]["sync_mtp"] == "active"
        assert header["server"]["settings"]["speculative_draft_model_path"] == f"{MODEL}-assistant"
        assert summary["correct"] == sum(row["correct"] for row in rows) >= least
        assert 1 < summary["accept_length"] <= 4
        for row in rows:
            assert "".join(row["tokens"]).startswith(row["text"])
            assert len(row["token_ids"]) == len(row["logprobs"]) == len(row["runner_up"]) == row["completion_tokens"]
            assert all(own > other for own, (_, other) in zip(row["logprobs"], row["runner_up"], strict=True)), "greedy takes the best"


def test_perplexity_is_of_every_token_and_that_of_a_model_that_knows_the_text(runs: dict[str, Path]) -> None:
    _, *rows, summary = lines(runs["text"])
    scored = [value for row in rows for value in row["logprobs"] if value is not None]
    assert len(rows) > 2
    assert len(scored) == summary["tokens"] == lines(runs["text"])[0]["dataset"]["tokens"]
    assert summary["nats_per_token"] == pytest.approx(-sum(scored) / len(scored))
    assert 1.5 < summary["perplexity"] < 20, "stories of the world, a vocabulary of 1,000 tokens"


def test_a_finished_run_is_not_asked_again(runs: dict[str, Path], url: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = lines(runs["colors"])
    assert cli.main(["eval", "colors", "--questions", "12", "--url", url, "--out", str(runs["colors"])]) == 0
    assert "12 answers are there, 0 to go" in capsys.readouterr().err
    assert lines(runs["colors"])[1:-1] == before[1:-1]
    assert cli.main(["eval", "colors", "--questions", "9", "--url", url, "--out", str(runs["colors"])]) == 2
    assert "holds another run (different: questions)" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["mmlu", "colors", "text"])
def test_a_run_against_itself_is_identical(runs: dict[str, Path], kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(runs[kind])
    assert cli.main(["compare", path, path, "--gate"]) == 0
    assert cli.main(["compare", path, path, "--json"]) == 0
    made = json.loads(capsys.readouterr().out.partition("held\n")[2])
    assert made["largest_logprob_drift"] == 0
    assert made["nats_per_token_loss"] == 0 if kind == "text" else (made["identical_answers"], made["p_value"]) == (1, 1)


@pytest.mark.parametrize("kind", ["mmlu", "colors", "text"])
def test_a_corrupted_copy_exceeds_the_gate(runs: dict[str, Path], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = lines(runs[kind])
    for row in records[1:-1][:10]:
        if kind == "text":
            row["logprobs"] = [None if value is None else value - 0.5 for value in row["logprobs"]]
        else:
            row.update(text="none of them", correct=False, token_ids=[7, *row["token_ids"][1:]])
    copy = tmp_path / "copy.jsonl"
    copy.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert cli.main(["compare", str(runs[kind]), str(copy), "--gate"]) == 1
    out = capsys.readouterr().out
    assert "gate [default] EXCEEDED" in out
    assert ("nats per token: B loses" if kind == "text" else "accuracy: B loses") in out


def test_what_the_server_refuses_is_one_line(url: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, out = tmp_path / "short.txt", str(tmp_path / "out.jsonl")
    short.write_text("a")
    for arguments, said in [
        (["mmlu", "--model", "gemma-5"], f"does not serve 'gemma-5' but {MODEL}"),
        (["mmlu", "--dataset", "world", "--max-tokens", "100000"], "a question could not be asked: Error code: 400"),
        (["colors", "--max-tokens", "0"], "--max-tokens 0 leaves no answer"),
        (["text", str(short)], "holds 1 token; perplexity needs at least 2"),
        (["text", str(tmp_path / "story.txt")], "is not a file"),
        (["text", str(runs["mmlu"]), "--window", "5000"], "--window 5000 does not fit the model's context of 4096 tokens"),
    ]:
        assert cli.main(["eval", *arguments, "--url", url, "--out", out]) == 2
        assert said in capsys.readouterr().err

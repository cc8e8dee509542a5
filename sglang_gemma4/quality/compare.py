"""Two finished runs of the same questions, paired: A is the baseline, B the candidate."""

import math
from pathlib import Path
from typing import Any

from sglang_gemma4.quality import paired, results
from sglang_gemma4.quality.asking import accept_length

SHOWN = 10
"""First differing tokens that the text lists; the JSON holds all."""


def compare(path_a: Path, path_b: Path) -> dict[str, Any]:
    """JSON-ready comparison of two files of `eval`.

    Raises:
        ValueError: a file is malformed or unfinished, or the two do not hold the same questions of the same evaluation.
    """
    a, b = results.finished(path_a), results.finished(path_b)
    if a.header["eval"] != b.header["eval"]:
        raise ValueError(f"{path_a} is a run of eval {a.header['eval']}, {path_b} of eval {b.header['eval']}; compare two of the same")
    pairs = _pairs(a, b)
    shared = {"eval": a.header["eval"], "dataset": a.header["dataset"], "pairs": len(pairs), "settings": _different_settings(a, b)}
    made = _texts(pairs) if a.header["eval"] == "text" else _answers(pairs)
    sides = {name: {"file": run.path.name, **_who(run), **made.pop(name)} for name, run in (("a", a), ("b", b))}
    return {**shared, **sides, **made}


def _pairs(a: results.Run, b: results.Run) -> list[tuple[results.Record, results.Record]]:
    rows_a, rows_b = ({row["id"]: row for row in run.rows} for run in (a, b))
    only_a, only_b = len(rows_a.keys() - rows_b.keys()), len(rows_b.keys() - rows_a.keys())
    if only_a or only_b or not rows_a:
        raise ValueError(
            f"the question sets differ: {only_a} of {len(rows_a)} ids of {a.path} are missing in {b.path}, "
            f"{only_b} of {len(rows_b)} the other way; run both with the same dataset, --questions and --seed"
        )
    changed = [name for name, row in rows_a.items() if row["hash"] != rows_b[name]["hash"]]
    if changed:
        raise ValueError(
            f"{len(changed)} of {len(rows_a)} questions were put differently in {a.path} and {b.path}, first {changed[0]!r}; "
            "run both with the same dataset, seed, prompt and tokenizer"
        )
    return [(row, rows_b[name]) for name, row in rows_a.items()]


def _who(run: results.Run) -> dict[str, Any]:
    return {"model": run.header["model"], **{name: run.header["server"][name] for name in ("sglang", "sglang_gemma4", "patches")}}


def _different_settings(a: results.Run, b: results.Run) -> dict[str, list[Any]]:
    """{name: [A's, B's]} of the server settings and evaluator options that differ; patches only if both servers report them."""
    servers = [run.header["server"] for run in (a, b)]
    reported = all(server["patches"] for server in servers)
    one, other = (
        {
            **server["settings"],
            **(server["patches"] if reported else {}),
            **run.header["evaluator"],
            "concurrency": run.header["concurrency"],
        }
        for run, server in zip((a, b), servers, strict=True)
    )
    return {name: [one.get(name), other.get(name)] for name in {**one, **other} if one.get(name) != other.get(name)}


def _answers(pairs: list[tuple[results.Record, results.Record]]) -> dict[str, Any]:
    table = [[sum(a["correct"] == x and b["correct"] == y for a, b in pairs) for y in (True, False)] for x in (True, False)]
    recorded = any(a["token_ids"] and b["token_ids"] for a, b in pairs)  # not with --no-logprobs
    different = [found for a, b in pairs if (found := paired.first_difference(a, b))]
    side = {
        name: {
            "accuracy": sum(pair[index]["correct"] for pair in pairs) / len(pairs),
            "accept_length": accept_length([p[index] for p in pairs]),
        }
        for index, name in enumerate("ab")
    }
    return {
        **side,
        "table": table,
        "p_value": paired.mcnemar(table[0][1], table[1][0]),
        "identical_answers": sum(a["text"] == b["text"] for a, b in pairs) / len(pairs),
        "character_agreement": paired.character_agreement([(a["text"], b["text"]) for a, b in pairs]),
        "largest_logprob_drift": _largest_drift(pairs),
        "first_differences": different if recorded else None,
    }


def _largest_drift(pairs: list[tuple[results.Record, results.Record]]) -> float | None:
    return max((found for a, b in pairs if (found := paired.drift(a, b)) is not None), default=None)


def _texts(pairs: list[tuple[results.Record, results.Record]]) -> dict[str, Any]:
    differences, counts, sides = [], [], ([0.0], [0.0])
    for pair in pairs:
        values = [[value for value in row["logprobs"] if value is not None] for row in pair]
        if len(values[0]) != len(values[1]):
            raise ValueError(
                f"{pair[0]['id']}: A scores {len(values[0])} tokens, B {len(values[1])}; run both with the same --window and --stride"
            )
        differences.append(math.fsum(values[0]) - math.fsum(values[1]))
        counts.append(len(values[0]))
        for side, own in zip(sides, values, strict=True):
            side.append(math.fsum(own))
    loss, interval = paired.mean_difference(differences, counts)
    nats = [-math.fsum(side) / sum(counts) for side in sides]
    return {
        **{name: {"nats_per_token": value, "perplexity": math.exp(value)} for name, value in zip("ab", nats, strict=True)},
        "tokens": sum(counts),
        "nats_per_token_loss": loss,
        "nats_per_token_loss_interval": interval,
        "largest_logprob_drift": _largest_drift(pairs),
    }


def text(made: dict[str, Any]) -> str:
    """:func:`compare` for a terminal."""
    lines = [f"eval {made['eval']} on {made['dataset']['name']}, {made['pairs']} pairs"]
    for name in "ab":
        side = made[name]
        package = f"sglang-gemma4 {side['sglang_gemma4']}" if side["sglang_gemma4"] else "without sglang-gemma4 (or its report)"
        lines.append(f"  {name.upper()}  {side['file']}: {side['model']}, SGLang {side['sglang']}, {package}")
    lines += [f"  differs: {name} {values[0]} | {values[1]}" for name, values in made["settings"].items()]
    return "\n".join(lines + (_text_lines(made) if made["eval"] == "text" else _answer_lines(made)))


def _text_lines(made: dict[str, Any]) -> list[str]:
    interval = made["nats_per_token_loss_interval"]
    spread = f"95% interval {interval[0]:+.6f} to {interval[1]:+.6f}" if interval else "no interval: one window"
    return [
        f"{'':<26}{'A':>12}{'B':>12}",
        f"{'nats per token':<26}{made['a']['nats_per_token']:>12.6f}{made['b']['nats_per_token']:>12.6f}",
        f"{'perplexity':<26}{made['a']['perplexity']:>12.4f}{made['b']['perplexity']:>12.4f}",
        f"B loses {made['nats_per_token_loss']:+.6f} nats per token over {made['tokens']} tokens ({spread})",
        f"largest difference of one token's log-probability: {made['largest_logprob_drift']:.6f}",
    ]


def _answer_lines(made: dict[str, Any]) -> list[str]:
    (both, only_a), (only_b, none) = made["table"]
    lengths = ["none" if made[name]["accept_length"] is None else f"{made[name]['accept_length']:.3f}" for name in "ab"]
    different, drift = made["first_differences"], made["largest_logprob_drift"]
    none_shared = "no token shared" if different is not None else "not recorded"
    lines = [
        f"{'':<26}{'A':>12}{'B':>12}",
        f"{'accuracy':<26}{made['a']['accuracy']:>12.4f}{made['b']['accuracy']:>12.4f}",
        f"{'accept length':<26}{lengths[0]:>12}{lengths[1]:>12}",
        f"{'':<26}{'B right':>12}{'B wrong':>12}",
        f"{'A right':<26}{both:>12}{only_a:>12}",
        f"{'A wrong':<26}{only_b:>12}{none:>12}",
        f"exact McNemar p = {made['p_value']:.4g}",
        f"identical answers {made['identical_answers']:.4f}, characters agreeing {made['character_agreement']:.4f}",
        f"largest difference of a shared token's log-probability: {none_shared if drift is None else f'{drift:.6f}'}",
    ]
    if different is None:
        return [*lines, "differing tokens: not recorded"]
    lines.append(f"tokens differ in {len(different)} answers" + (", first at" if different else ""))
    for one in different[:SHOWN]:
        lines.append(f"  {one['id']} token {one['position']}: A {_said(one['a'])} | B {_said(one['b'])}")
    if len(different) > SHOWN:
        lines.append(f"  and {len(different) - SHOWN} more (--json)")
    return lines


def _said(side: dict[str, Any]) -> str:
    if side["token"] is None:
        return "had ended"
    logprob = "" if side["logprob"] is None else f" {side['logprob']:.4f}"
    other = "" if side["other"] is None else f" (the other's {side['other']:.4f})"
    return f"{side['token']!r}{logprob}{other}"

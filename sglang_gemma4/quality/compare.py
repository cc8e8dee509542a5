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
    headers = a.header, b.header
    reported = all(header["server"]["patches"] for header in headers)
    one, other = (
        {
            **header["server"]["settings"],
            **(header["server"]["patches"] if reported else {}),
            **header["evaluator"],
            "concurrency": header["concurrency"],
        }
        for header in headers
    )
    return {name: [one.get(name), other.get(name)] for name in {**one, **other} if one.get(name) != other.get(name)}


def _answers(pairs: list[tuple[results.Record, results.Record]]) -> dict[str, Any]:
    table = [[sum(a["correct"] == x and b["correct"] == y for a, b in pairs) for y in (True, False)] for x in (True, False)]
    recorded = any(a["token_ids"] and b["token_ids"] for a, b in pairs)  # not with --no-logprobs
    different = [found for a, b in pairs if (found := paired.first_difference(a, b))]
    return {
        **{
            name: {"accuracy": sum(row["correct"] for row in rows) / len(rows), "accept_length": accept_length(rows)}
            for name, rows in zip("ab", zip(*pairs, strict=True), strict=True)
        },
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
    sums, counts = [], []
    for a, b in pairs:
        values = [[value for value in row["logprobs"] if value is not None] for row in (a, b)]
        if len(values[0]) != len(values[1]):
            raise ValueError(
                f"{a['id']}: A scores {len(values[0])} tokens, B {len(values[1])}; run both with the same --window and --stride"
            )
        sums.append([math.fsum(own) for own in values])
        counts.append(len(values[0]))
    loss, interval = paired.mean_difference([one - other for one, other in sums], counts)
    nats = [-math.fsum(side) / sum(counts) for side in zip(*sums, strict=True)]
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


def _row(name: str, a: object, b: object) -> str:
    return f"{name:<26}{a:>12}{b:>12}"


def _text_lines(made: dict[str, Any]) -> list[str]:
    a, b, interval = made["a"], made["b"], made["nats_per_token_loss_interval"]
    spread = f"95% interval {interval[0]:+.6f} to {interval[1]:+.6f}" if interval else "no interval: one window"
    return [
        _row("", "A", "B"),
        _row("nats per token", f"{a['nats_per_token']:.6f}", f"{b['nats_per_token']:.6f}"),
        _row("perplexity", f"{a['perplexity']:.4f}", f"{b['perplexity']:.4f}"),
        f"B loses {made['nats_per_token_loss']:+.6f} nats per token over {made['tokens']} tokens ({spread})",
        f"largest difference of one token's log-probability: {made['largest_logprob_drift']:.6f}",
    ]


def _answer_lines(made: dict[str, Any]) -> list[str]:
    a, b, table, different, drift = (made[name] for name in ("a", "b", "table", "first_differences", "largest_logprob_drift"))
    lengths = ["none" if side["accept_length"] is None else f"{side['accept_length']:.3f}" for side in (a, b)]
    no_drift = "not recorded" if different is None else "no token shared"
    lines = [
        _row("", "A", "B"),
        _row("accuracy", f"{a['accuracy']:.4f}", f"{b['accuracy']:.4f}"),
        _row("accept length", *lengths),
        _row("", "B right", "B wrong"),
        _row("A right", *table[0]),
        _row("A wrong", *table[1]),
        f"exact McNemar p = {made['p_value']:.4g}",
        f"identical answers {made['identical_answers']:.4f}, characters agreeing {made['character_agreement']:.4f}",
        f"largest difference of a shared token's log-probability: {no_drift if drift is None else f'{drift:.6f}'}",
    ]
    if different is None:
        return [*lines, "differing tokens: not recorded"]
    lines.append(f"tokens differ in {len(different)} answers" + (", first at" if different else ""))
    lines += [f"  {one['id']} token {one['position']}: A {_said(one['a'])} | B {_said(one['b'])}" for one in different[:SHOWN]]
    return lines + ([f"  and {len(different) - SHOWN} more (--json)"] if len(different) > SHOWN else [])


def _said(side: dict[str, Any]) -> str:
    if side["token"] is None:
        return "had ended"
    logprob = "" if side["logprob"] is None else f" {side['logprob']:.4f}"
    other = "" if side["other"] is None else f" (the other's {side['other']:.4f})"
    return f"{side['token']!r}{logprob}{other}"

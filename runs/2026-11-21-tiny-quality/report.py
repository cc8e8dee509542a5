"""Writes REPORT.md from raw/: every figure comes from the JSON lines, through the package's own comparison."""

from pathlib import Path
from typing import Any

from sglang_gemma4.quality import gates, results
from sglang_gemma4.quality.compare import compare

HERE = Path(__file__).parent
ARMS = ("stock", "package-no-router", "package", "package-mtp")
PAIRS = (
    ("stock", "stock-again"),
    ("stock", "package"),
    ("stock", "package-no-router"),
    ("package-no-router", "package"),
    ("package", "package-mtp"),
)
SWITCH = "SGLANG_GEMMA4"


def main() -> None:
    models = sorted(path.name for path in (HERE / "raw").iterdir() if there(path.name, "package-mtp", "text"))
    lines = [" ".join(finding(model) for model in models), "", *conditions(models), ""]
    for model in models:
        lines += [f"## {model}", "", *arms(model), "", *pairs(model), ""]
    lines += [
        "One-letter answers say little about speculation: a step's drafts are counted also behind the answer's end, so the accept lengths",
        "here compare arms and are no speed. `raw/MODEL/A-B-KIND.txt` holds each comparison with its first differing tokens and the gate.",
    ]
    (HERE / "REPORT.md").write_text("\n".join(lines) + "\n")


def there(model: str, arm: str, kind: str) -> bool:
    return (HERE / "raw" / model / arm / f"{kind}.jsonl").exists()


def pair(model: str, a: str, b: str, kind: str) -> dict[str, Any]:
    return compare(*(HERE / "raw" / model / arm / f"{kind}.jsonl" for arm in (a, b)))


def finding(model: str) -> str:
    mmlu, colors, text = (pair(model, "stock", "package", kind) for kind in ("mmlu", "colors", "text"))
    right = [round(mmlu[side]["accuracy"] * mmlu["pairs"]) for side in "ab"]
    mtp = pair(model, "package", "package-mtp", "mmlu")
    broken = [line for made in (mmlu, colors, text) for line in gates.exceeded(made, gates.read(gates.SHIPPED, SWITCH))]
    parts = [
        f"{right[1]} of {mmlu['pairs']} four-choice questions right with the package, {right[0]} with stock "
        f"(exact McNemar p = {mmlu['p_value']:.2g})",
        f"perplexity {text['b']['perplexity']:.4f} and {text['a']['perplexity']:.4f}",
        f"colours {colors['b']['accuracy']:.0%} and {colors['a']['accuracy']:.0%}",
    ]
    if there(model, "package-no-router", "text"):
        off, off_text = (pair(model, "stock", "package-no-router", kind) for kind in ("mmlu", "text"))
        parts.append(
            f"without the router patch {off['identical_answers']:.1%} of the answers are stock's "
            f"and perplexity is {off_text['b']['perplexity']:.4f}"
        )
    parts.append(f"MTP leaves {mtp['identical_answers']:.1%} of the package's answers as they are")
    parts.append(f"the gate of {SWITCH} is {'exceeded: ' + ', '.join(broken) if broken else 'held'}")
    return f"{model}: {'; '.join(parts)}."


def conditions(models: list[str]) -> list[str]:
    header = results.load(HERE / "raw" / models[0] / "package" / "mmlu.jsonl").header
    settings = header["server"]["settings"]
    dataset, server, tool = header["dataset"], header["server"], header["evaluator"]
    return [
        f"`bash measure.sh MODEL ARM...` for the arms below, `bash compare.sh {' '.join(models)}`, then `python report.py`.",
        f"CPU reference engine in all arms ({settings['dtype']}), SGLang {server['sglang']}, sglang-gemma4 {server['sglang_gemma4']},",
        f"{tool['name']} {tool['version']}, temperature 0, seed 0, {header['concurrency']} requests in flight. `eval mmlu` asked",
        f"the set {dataset['name']!r}: {dataset['why']}. Its prompts: {dataset['prompt']}.",
        "`stock` is `SGLANG_GEMMA4=0`, without MTP, which stock cannot run without overlap; `stock-again` asks the same server once more;",
        "`package-no-router` is the package with `SGLANG_GEMMA4_ROUTER_SCALE=0`. The CPU takes one of several router paths: what the patch",
        "changes here need not be what it changes on a card.",
    ]


def arms(model: str) -> list[str]:
    lines = [
        "| arm | four-choice right | colours right | nats per token | perplexity | accept length (four-choice, colours) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for arm in (arm for arm in ARMS if there(model, arm, "text")):
        mmlu, colors, text = (results.finished(HERE / "raw" / model / arm / f"{kind}.jsonl").summary for kind in ("mmlu", "colors", "text"))
        assert mmlu is not None
        assert colors is not None
        assert text is not None
        lengths = " · ".join("–" if made["accept_length"] is None else f"{made['accept_length']:.3f}" for made in (mmlu, colors))
        lines.append(
            f"| {arm} | {mmlu['correct']} of {mmlu['questions']} | {colors['correct']} of {colors['questions']} "
            f"| {text['nats_per_token']:.5f} | {text['perplexity']:.4f} | {lengths} |"
        )
    return lines


def pairs(model: str) -> list[str]:
    lines = [
        "| A | B | asked | only A right · only B right | p | same answers | characters agreeing | largest log-probability difference |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for a, b in PAIRS:
        for kind in ("mmlu", "colors"):
            if there(model, a, kind) and there(model, b, kind):
                made = pair(model, a, b, kind)
                lines.append(
                    f"| {a} | {b} | {kind} | {made['table'][0][1]} · {made['table'][1][0]} | {made['p_value']:.3g} "
                    f"| {made['identical_answers']:.4f} | {made['character_agreement']:.4f} | {made['largest_logprob_drift']:.2g} |"
                )
    lines += [
        "",
        "| A | B | nats per token that B loses | 95% interval | largest log-probability difference |",
        "| --- | --- | --- | --- | --- |",
    ]
    for a, b in PAIRS:
        if not (there(model, a, "text") and there(model, b, "text")):
            continue
        made = pair(model, a, b, "text")
        low, high = made["nats_per_token_loss_interval"]
        lines.append(
            f"| {a} | {b} | {made['nats_per_token_loss']:+.6f} | {low:+.6f} to {high:+.6f} | {made['largest_logprob_drift']:.2g} |"
        )
    return lines


if __name__ == "__main__":
    main()

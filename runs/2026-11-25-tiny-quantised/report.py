"""Writes REPORT.md from raw/: every figure comes from the JSON lines, through the package's own comparison."""

from pathlib import Path
from typing import Any

from sglang_gemma4.quality import gates, results
from sglang_gemma4.quality.compare import compare

HERE = Path(__file__).parent
FORMATS = ("fp8-dynamic", "w4a16-g32")


def main() -> None:
    header = results.load(HERE / "raw" / "bfloat16" / "mmlu.jsonl").header
    server, tool = header["server"], header["evaluator"]
    lines = [
        " ".join(finding(form) for form in FORMATS),
        "",
        "`bash measure.sh`, `bash compare.sh`, then `python report.py`. tiny-26b-a4b in bfloat16 and as `checkpoint --quantization` writes",
        f"it, each with its bfloat16 assistant (MTP, 3 steps); CPU reference engine in float32, SGLang {server['sglang']}, sglang-gemma4",
        f"{server['sglang_gemma4']}, {tool['name']} {tool['version']}, temperature 0, seed 0, {header['concurrency']} requests in flight.",
        "The CPU engine rounds float8 activations by token; a card's kernels add errors of their own, which no run shows yet.",
        "",
        "| weights | four-choice right | colours right | nats per token | perplexity | accept length (four-choice, colours) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [row(arm) for arm in ("bfloat16", *FORMATS)]
    lines += [
        "",
        "| A | B | asked | only A right · only B right | p | same answers | gate |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [compared(form, kind) for form in FORMATS for kind in ("mmlu", "colors")]
    lines += ["", *(text_gate(form) for form in FORMATS), ""]
    lines += [
        "`raw/bfloat16-FORMAT-KIND.txt` holds each comparison. One-letter answers say little about speculation; accept lengths of chats are"
    ]
    lines += ["compared in `tests/engine/test_quantised.py`."]
    (HERE / "REPORT.md").write_text("\n".join(lines) + "\n")


def pair(form: str, kind: str) -> dict[str, Any]:
    return compare(*(HERE / "raw" / arm / f"{kind}.jsonl" for arm in ("bfloat16", form)))


def finding(form: str) -> str:
    mmlu, colors, text = (pair(form, kind) for kind in ("mmlu", "colors", "text"))
    right = [round(mmlu[side]["accuracy"] * mmlu["pairs"]) for side in "ab"]
    lengths = [mmlu[side]["accept_length"] for side in "ab"]
    return (
        f"{form}: {right[1]} of {mmlu['pairs']} four-choice questions right, {right[0]} in bfloat16 "
        f"(exact McNemar p = {mmlu['p_value']:.2g}); "
        f"perplexity {text['b']['perplexity']:.4f} and {text['a']['perplexity']:.4f}; colours {colors['b']['accuracy']:.0%} and "
        f"{colors['a']['accuracy']:.0%}; accept length {lengths[1]:.3f} and {lengths[0]:.3f}."
    )


def row(arm: str) -> str:
    mmlu, colors, text = (results.finished(HERE / "raw" / arm / f"{kind}.jsonl").summary for kind in ("mmlu", "colors", "text"))
    assert mmlu is not None
    assert colors is not None
    assert text is not None
    return (
        f"| {arm} | {mmlu['correct']} of {mmlu['questions']} | {colors['correct']} of {colors['questions']} "
        f"| {text['nats_per_token']:.5f} | {text['perplexity']:.4f} | {mmlu['accept_length']:.3f} · {colors['accept_length']:.3f} |"
    )


def compared(form: str, kind: str) -> str:
    made = pair(form, kind)
    broken = gates.exceeded(made, gates.read(gates.SHIPPED))
    only = f"{made['table'][0][1]} · {made['table'][1][0]}"
    return (
        f"| bfloat16 | {form} | {kind} | {only} | {made['p_value']:.3g} | {made['identical_answers']:.4f} | "
        f"{'; '.join(broken) if broken else 'held'} |"
    )


def text_gate(form: str) -> str:
    made = pair(form, "text")
    broken = gates.exceeded(made, gates.read(gates.SHIPPED))
    low, high = made["nats_per_token_loss_interval"]
    return (
        f"{form} loses {made['nats_per_token_loss']:+.6f} nats per token (95% interval {low:+.6f} to {high:+.6f}); "
        f"gate {'; '.join(broken) if broken else 'held'}."
    )


if __name__ == "__main__":
    main()

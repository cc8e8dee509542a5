"""Writes REPORT.md from raw/, with the tables of the run that this one follows."""

import importlib.util
from pathlib import Path
from typing import Any

from sglang_gemma4.quality import gates, results
from sglang_gemma4.quality.compare import compare

HERE = Path(__file__).parent
ARMS = ("package", "int8", "fp8", "package-mtp", "int8-mtp")
PAIRS = (("package", "int8"), ("package", "fp8"), ("int8", "int8-mtp"), ("package-mtp", "int8-mtp"))


def tables() -> Any:
    """The report of ``2026-11-21-tiny-quality``, over this folder and these arms."""
    spec = importlib.util.spec_from_file_location("tiny_quality", HERE.parent / "2026-11-21-tiny-quality" / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.HERE, module.ARMS, module.PAIRS = HERE, ARMS, PAIRS
    return module


def finding(model: str) -> str:
    """One sentence: what int8 and fp8 change, and whether the shipped gate is held."""
    folder, broken, said = HERE / "raw" / model, [], []
    for arm in ("int8", "fp8"):
        pairs = {kind: compare(*(folder / one / f"{kind}.jsonl" for one in ("package", arm))) for kind in ("mmlu", "colors", "text")}
        broken += [f"{arm}: {line}" for made in pairs.values() for line in gates.exceeded(made, gates.read(gates.SHIPPED))]
        mmlu, colors, text = pairs.values()
        right = [round(mmlu[side]["accuracy"] * mmlu["pairs"]) for side in "ab"]
        said.append(
            f"{arm} {right[1]} of {mmlu['pairs']} four-choice questions right ({right[0]} without), colours {colors['b']['accuracy']:.0%} "
            f"({colors['a']['accuracy']:.0%}), perplexity {text['b']['perplexity']:.4f} ({text['a']['perplexity']:.4f})"
        )
    lengths = []
    for arm in ("int8-mtp", "package-mtp"):
        summary = results.finished(folder / arm / "mmlu.jsonl").summary
        assert summary is not None
        lengths.append(f"{summary['accept_length']:.3f}")
    gate = f"the default gate is exceeded ({'; '.join(broken)})" if broken else "the default gate is held"
    return f"{model}: {'; '.join(said)}; accept length {' with int8, '.join(lengths)} without; {gate}."


def main() -> None:
    """Every figure comes from the JSON lines, through the package's own comparison."""
    made, models = tables(), sorted(path.name for path in (HERE / "raw").iterdir())
    lines = [" ".join(finding(model) for model in models), ""]
    lines += [
        f"`bash measure.sh MODEL` for each, `bash compare.sh {' '.join(models)}`, then `python report.py`. CPU reference engine in",
        "float32, temperature 0, seed 0, 16 requests in flight; `package` has its KV in float32, the others a scale for each",
        "token and head.",
        "Four-choice questions are of the set 'world': MMLU cannot be fetched here.",
        "",
    ]
    for model in models:
        lines += [f"## {model}", "", *made.arms(model), "", *made.pairs(model), ""]
    (HERE / "REPORT.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()

"""Writes REPORT.md and difference.png from raw.jsonl (and again.jsonl): every figure comes from there."""

from pathlib import Path
from typing import Any

import asked
import numpy as np
from words import FINDINGS

from sglang_gemma4.benchmark.plots import COLOURS, DPI, WIDTH

HERE = Path(__file__).parent
RAW, AGAIN = HERE / "raw.jsonl", HERE / "again.jsonl"
RESAMPLES, SEED = 10_000, 0
STOCK, OURS, SHIPPED = "stock's draft", "DRAFT_PHASE", "as shipped"  # arms: of the engine the first two, of transformers the last
STOCKS, LAST, RULE, MASK = (
    "-1, window - 1",
    "0, window - 1",
    "+1, window - 1",
    "+1, window + 1",
)  # of the reference: stock's, L, L+1, transformers'
Interval = tuple[float, float, float]
Key = tuple[str, str, str]


class Study:
    """The lines of raw.jsonl by family, side and arm, and which prompts are text."""

    def __init__(self) -> None:
        lines = asked.records(RAW)
        self.records: dict[Key, Any] = {(one["family"], one["side"], one["arm"]): one for one in lines if "arm" in one}
        self.kinds = np.array(next(one["kinds"] for one in lines if one["side"] == "prompts"))
        self.text = np.array(["image" not in kind for kind in self.kinds])
        self.everything = np.ones(len(self.kinds), bool)

    def arms(self, family: str, side: str) -> list[str]:
        return [arm for of, at, arm in self.records if (of, at) == (family, side)]

    def every(self, family: str, side: str, arm: str) -> int:
        """Every how manieth prompt an arm has."""
        return int(self.records[family, side, arm].get("every", 1))

    def steps(self, family: str, side: str, arm: str, own: bool = False) -> Any:
        """Verify steps of each prompt; ``own``: to the end of the model's turn only."""
        return np.array(self.records[family, side, arm]["own_steps" if own else "steps"])

    def tokens(self, family: str, side: str, arm: str, own: bool = False) -> Any:
        """Tokens of each prompt, the prefill's left out."""
        record = self.records[family, side, arm]
        return np.array(record["own_tokens"]) if own else np.full(len(record["steps"]), asked.NEW_TOKENS - 1)

    def change(self, side: str, arm: str, chosen: Any, family: str | None = None, own: bool = False, to: str = STOCKS) -> str:
        """Accept length against the reference's arm ``to``, of one family or of all together; see :func:`change`."""
        families = asked.FAMILIES if family is None else (family,)
        every = self.every(families[0], side, arm)
        base = sum(self.steps(one, "reference", to, own)[::every] for one in families)
        return said(change(base[chosen[::every]], sum(self.steps(one, side, arm, own) for one in families)[chosen[::every]]))

    def changes(self, arm: str, chosen: Any, own: bool = False) -> str:
        """Of a reference's arm: each family and all together."""
        each = [f"{self.change('reference', arm, chosen, family, own)} on {family}" for family in asked.FAMILIES]
        return f"{', '.join(each)};\n  all together {self.change('reference', arm, chosen, own=own)}"


def change(base: Any, steps: Any) -> Interval:
    """By how much the same tokens in ``steps`` instead of ``base`` steps raise the accept length, in percent, with the 95% interval."""
    chosen = np.random.default_rng(SEED).integers(0, len(base), (RESAMPLES, len(base)))
    low, high = np.percentile(base[chosen].sum(axis=1) / steps[chosen].sum(axis=1), (2.5, 97.5))
    return tuple(100 * (float(ratio) - 1) for ratio in (base.sum() / steps.sum(), low, high))  # type: ignore[return-value]


def said(interval: Interval) -> str:
    mean, low, high = interval
    return "0" if mean == low == high == 0 else f"{mean:+.2f} % ({low:+.2f} to {high:+.2f}){' **' if low > 0 or high < 0 else ''}"


def accept_length(tokens: Any, steps: Any) -> str:
    chosen = np.random.default_rng(SEED).integers(0, len(steps), (RESAMPLES, len(steps)))
    low, high = np.percentile(tokens[chosen].sum(axis=1) / steps[chosen].sum(axis=1), (2.5, 97.5))
    return f"{tokens.sum() / steps.sum():.3f} ({low:.3f} to {high:.3f})"


def table(*rows: list[str]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]


def summary(study: Study) -> list[str]:
    """One row of each pair and each of the arms that matter."""
    arms = ((STOCK, "engine", STOCK), ("package's defaults", "engine", "default"), ("DRAFT_PHASE=1", "engine", OURS))
    rows = [
        ["pair", "arm", "prompts", "verify steps", "drafted", "accepted", "accept length (95 %)", "text and images", "text", "own turn"]
    ]
    for family in asked.FAMILIES:
        for name, side, arm in (*arms, ("transformers' own loop", "transformers", SHIPPED)):
            steps, tokens = study.steps(family, side, arm), study.tokens(family, side, arm)
            counts = [len(steps), steps.sum(), asked.STEPS * steps.sum(), tokens.sum() - steps.sum()]
            apart = [study.change(side, arm, chosen, family) for chosen in (study.everything, study.text)]
            own = study.change("reference", RULE, study.everything, family, own=True) if arm == OURS else "0" if side == "engine" else ""
            rows.append([family, name, *(f"{one:,}" for one in counts), accept_length(tokens, steps), *apart, own])
    return table(*rows)


def engine(study: Study) -> list[str]:
    rows = [["family", "arm", "text prompts", "change", "image prompts", "change", "prompts with other tokens than stock's"]]
    for family in asked.FAMILIES:
        for arm in study.arms(family, "engine"):
            steps, tokens = study.steps(family, "engine", arm), study.tokens(family, "engine", arm)
            cells = [
                cell
                for chosen in (study.text, ~study.text)
                for cell in (accept_length(tokens[chosen], steps[chosen]), study.change("engine", arm, chosen, family))
            ]
            rows.append([family, arm, *cells, str(study.records[family, "engine", arm]["other_tokens"])])
    return table(*rows)


def against_reference(study: Study) -> list[str]:
    pairs = (("engine", "default", STOCKS), ("engine", OURS, RULE), ("transformers", "accepted keys only", MASK))
    rows = [["family", *(f"{side}, {arm}, and reference {reference}" for side, arm, reference in pairs)]]
    for family in asked.FAMILIES:
        cells = []
        for side, arm, reference in pairs:
            found = study.steps(family, side, arm)
            expected = study.steps(family, "reference", reference)[:: study.every(family, side, arm)]
            cells.append(f"{(found != expected).sum()} of {len(found)}")
        rows.append([family, *cells])
    return table(*rows)


def positions(study: Study) -> list[str]:
    rows = [["family", "position, keys", "64 tokens", "change", "own turn", "change"]]
    for family in asked.FAMILIES:
        for arm in study.arms(family, "reference"):
            cells = []
            for own in (False, True):
                tokens, steps = study.tokens(family, "reference", arm, own), study.steps(family, "reference", arm, own)
                cells += [accept_length(tokens, steps), study.change("reference", arm, study.everything, family, own)]
            rows.append([family, arm, *cells])
    return table(*rows)


def shipped(study: Study) -> list[str]:
    rows = [["family", "arm", "prompts", "accept length", "to stock's draft", "to L+1 on the engine's keys", "prompts with other tokens"]]
    for family in asked.FAMILIES:
        for arm in study.arms(family, "transformers"):
            steps, tokens = study.steps(family, "transformers", arm), study.tokens(family, "transformers", arm)
            apart = [study.change("transformers", arm, study.everything, family, to=to) for to in (STOCKS, RULE)]
            other = str(study.records[family, "transformers", arm]["other_tokens"])
            rows.append([family, arm, str(len(steps)), accept_length(tokens, steps), *apart, other])
    return table(*rows)


def by_kind(study: Study) -> list[str]:
    rows = [["kind", "prompts", *(f"{family}, {span}" for family in asked.FAMILIES for span in ("64 tokens", "own turn"))]]
    for kind in asked.KINDS:
        chosen = study.kinds == kind
        cells = [study.change("reference", RULE, chosen, family, own) for family in asked.FAMILIES for own in (False, True)]
        rows.append([kind, str(chosen.sum()), *cells])
    return table(*rows)


def again(study: Study) -> list[str]:
    rows = [["family", "side", "arms", "prompts, all arms", "other steps"]]
    lines = [one for one in asked.records(AGAIN) if "arm" in one]
    for family, side in sorted({(one["family"], one["side"]) for one in lines}):
        found = [one for one in lines if (one["family"], one["side"]) == (family, side)]
        pairs: list[tuple[int, int]] = []
        for one in found:
            first = study.steps(family, side, one["arm"])[:: one["every"] // study.every(family, side, one["arm"])]
            pairs += zip(first, one["steps"], strict=True)
        rows.append([family, side, str(len(found)), str(len(pairs)), str(sum(a != b for a, b in pairs))])
    return table(*rows)


def plot(study: Study) -> None:
    """Changes against stock's draft with their intervals."""
    import matplotlib.pyplot as plt

    rows = [
        ("engine, package's defaults", "engine", "default", study.everything, False),
        ("L+1 (DRAFT_PHASE=1), text", "reference", RULE, study.text, False),
        ("L+1, images", "reference", RULE, ~study.text, False),
        ("L+1, the model's own turn", "reference", RULE, study.everything, True),
        ("L, text and images", "reference", LAST, study.everything, False),
        ("L, the model's own turn", "reference", LAST, study.everything, True),
        ("transformers' own loop", "transformers", SHIPPED, study.everything, False),
    ]
    figure, axes = plt.subplots(figsize=(WIDTH, 5.0), layout="constrained")
    for number, family in enumerate(asked.FAMILIES):
        for row, (_, side, arm, chosen, own) in enumerate(rows):
            base, steps = study.steps(family, "reference", STOCKS, own), study.steps(family, side, arm, own)
            mean, low, high = change(base[chosen], steps[chosen])
            place, colour = row + 0.22 * (number - 1), COLOURS[number]
            axes.plot([low, high], [place, place], color=colour, lw=2)
            axes.plot(mean, place, "o", color=colour, label=family if row == 0 else None)
    axes.axvline(0, color="#000000", lw=1)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("accept length against stock's draft, % (95 % interval)")
    axes.legend(frameon=False, loc="best")
    figure.savefig(HERE / "difference.png", dpi=DPI)
    plt.close(figure)


def main() -> None:
    study = Study()
    everything, text = study.everything, study.text
    sections = {name: "\n".join(make(study)) for name, make in SECTIONS.items()}
    changes = {
        "e2b_text": study.change("engine", OURS, text, "tiny-e2b"),
        "own_short": study.change("reference", RULE, everything, own=True),
        "all_short": study.change("reference", RULE, everything),
        "last": study.changes(LAST, everything),
        "last_own": study.changes(LAST, everything, own=True),
        "rule": study.changes(RULE, everything),
        "rule_own": study.changes(RULE, everything, own=True),
        "far": f"{study.change('reference', '+9, window - 1', everything)} and {study.change('reference', '-7, window - 1', everything)}",
        "own_tokens": f"{study.tokens(asked.FAMILIES[0], 'reference', RULE, own=True).mean():.0f}",
    }
    sizes = {
        "prompts": len(everything),
        "texts": text.sum(),
        "images": (~text).sum(),
        "tokens": asked.NEW_TOKENS,
        "resamples": f"{RESAMPLES:,}",
    }
    (HERE / "REPORT.md").write_text(FINDINGS.format(**sections, **changes, **sizes))
    plot(study)


SECTIONS = {
    "summary": summary,
    "engine": engine,
    "against_reference": against_reference,
    "positions": positions,
    "shipped": shipped,
    "by_kind": by_kind,
    "again": again,
}

if __name__ == "__main__":
    main()

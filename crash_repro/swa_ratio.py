"""A sliding pool that is too small: a request waits for ever, or dies while the full pool is nearly empty. Needs no GPU.

The server starts without a word. SGLang's default of 0.8 does not get there; --swa-full-tokens-ratio does.
"""

import sys
import tempfile
import time
from pathlib import Path

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]

CASES = [(0.8, slice(0, 2)), (0.02, slice(1, 2)), (0.02, slice(0, 2))]
"""Ratio, and which of the two prompts (50 and 90 tokens) are sent."""
FULL_TOKENS, TOKENS, SILENCE, LIMIT = 4096, 12, 10.0, 50.0
"""Slots of the full pool; new tokens; seconds without a line of the log that count as waiting for ever, where each step writes one; and
seconds after the first prefill that do so too, where a request is prefilled and retracted again and again."""


def main() -> int:
    """Short requests beside a full pool with room for dozens: each answered, or the start refused."""
    model = case.text_model("tiny-26b-a4b")
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        path = case.save(model, Path(folder))
        for ratio, chosen in CASES:
            prompts = case.PROMPTS[chosen]
            lengths = [len(prompt) for prompt in prompts]
            print(f"--- ratio {ratio}: {int(ratio * FULL_TOKENS)} sliding slots, prompts of {lengths} tokens and {TOKENS} more")
            seen = _serve(path, ratio, prompts)
            print(f"expected: answered, or refused at the start\nsaw:      {seen}")
            status = max(status, int(not seen.startswith(("answered", "refused at the start: "))))
    return status


def _serve(path: Path, ratio: float, prompts: list[list[int]]) -> str:
    options = {"swa_full_tokens_ratio": ratio, "max_total_tokens": FULL_TOKENS, "log_level": "info", "decode_log_interval": 1}
    extra = {"prompts": prompts, "tokens": TOKENS, "updated": None}
    job = {"model": str(path), "client": "case:continue_prompts", "extra": extra, "prepare": None, "engine": options}
    process = engines.EngineProcess(job)
    lines: list[str] = []
    since, first = time.monotonic(), None
    while not process.wait(0.5):
        now = time.monotonic()
        if new := process.log.readlines():
            lines, since = lines + new, now
        if first is None and any("Prefill batch" in line for line in lines):
            first = now
        if first is not None and (now - since > SILENCE or now - first > LIMIT):
            process.end()
            last = lines[-1].split("Prefill batch, ")[-1].split(", cpu graph")[0]
            long = f"{SILENCE:.0f} s without a line of the log" if now - since > SILENCE else f"{LIMIT:.0f} s"
            return f"no answer after {long}; the last: {last}"
    lines += process.log.readlines()
    if any(line.startswith("ANSWER ") for line in lines):
        return "answered"
    refused = [line.partition("Error: ")[2].strip() for line in lines if "PoolTooSmallError: " in line or "PreflightError: " in line]
    if refused:
        return f"refused at the start: {refused[-1]}"
    told = [line.strip() for line in lines if "Out of memory" in line]
    return told[-1].split("HTTPException: ")[-1] if told else f"ended without an answer: {lines[-1:]}"


if __name__ == "__main__":
    sys.exit(main())

"""A sliding pool that is too small: a request waits for ever, or dies while the full pool is nearly empty. Needs no GPU.

The server starts without a word. SGLang's default of 0.8 does not get there; --swa-full-tokens-ratio does.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import case  # type: ignore[import-not-found]

CASES = [(0.8, slice(0, 2)), (0.02, slice(1, 2)), (0.02, slice(0, 2))]
"""Ratio, and which of the two prompts (50 and 90 tokens) are sent."""
FULL_TOKENS, SILENCE = 4096, 40.0
"""Slots of the full pool; seconds without a line of the log that count as waiting for ever (a step takes 0.1 s)."""
CHILD = "import case, json, sys; case.PROMPTS[:] = case.PROMPTS[slice(*json.loads(sys.argv[2]))]; case._serve(json.loads(sys.argv[1]))"


def main() -> int:
    """Short requests beside a full pool with room for dozens: each answered, or the start refused."""
    model = case.text_model("tiny-26b-a4b")
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        path = case.save(model, Path(folder))
        for ratio, prompts in CASES:
            lengths = [len(prompt) for prompt in case.PROMPTS[prompts]]
            print(f"--- ratio {ratio}: {int(ratio * FULL_TOKENS)} sliding slots, prompts of {lengths} tokens and {case.TOKENS} more")
            seen = _serve(path, ratio, prompts)
            print(f"expected: answered, or refused at the start\nsaw:      {seen}")
            status = max(status, int(not seen.startswith(("answered", "refused at the start: "))))
    return status


def _serve(path: Path, ratio: float, prompts: slice) -> str:
    engine = {"swa_full_tokens_ratio": ratio, "max_total_tokens": FULL_TOKENS, "mem_fraction_static": 0.5, "log_level": "info"}
    arguments = [json.dumps({"model": str(path), "updated": None, "engine": engine}), json.dumps([prompts.start, prompts.stop])]
    with tempfile.NamedTemporaryFile("r") as log, open(log.name, "w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments], cwd=Path(__file__).parent, stdout=out, stderr=out, start_new_session=True
        )
        lines: list[str] = []
        since = time.monotonic()
        while process.poll() is None:
            time.sleep(1)
            if new := log.readlines():
                lines, since = lines + new, time.monotonic()
            elif time.monotonic() - since > SILENCE and any("Prefill batch" in line for line in lines):
                os.killpg(process.pid, signal.SIGKILL)  # the group it leads was started here
                process.wait()
                last = lines[-1].split("Prefill batch, ")[-1].split(", cpu graph")[0]
                return f"no answer and no line of the log for {SILENCE:.0f} s; the last: {last}"
        lines += log.readlines()
    if any(line.startswith("TOKENS ") for line in lines):
        return "answered"
    refused = [line.partition("PoolTooSmallError: ")[2].strip() for line in lines if "PoolTooSmallError: " in line]
    if refused:
        return f"refused at the start: {refused[-1]}"
    told = [line.strip() for line in lines if "Out of memory" in line]
    return told[-1].split("HTTPException: ")[-1] if told else f"exit status {process.returncode}: {lines[-1:]}"


if __name__ == "__main__":
    sys.exit(main())

"""Write down what every verify step of an engine was given and what it accepted. ``TEST_INSTRUMENTS=verify_recorder:record``."""

import json
from typing import Any

MARK = "VERIFIED "


def record() -> None:
    """A line in the log for each request of each verify step, whichever worker takes it: request id, tokens to verify, number accepted."""
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    original = EAGLEWorkerV2.verify

    def recorded(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = batch.spec_info.draft_token.view(len(batch.reqs), -1).tolist()
        result = original(worker, batch, *args, **kwargs)
        for request, row, accepted in zip(batch.reqs, tokens, result.accept_lens.tolist(), strict=True):
            print(f"{MARK}{json.dumps([type(worker).__name__, request.rid, row, accepted])}", flush=True)
        return result

    EAGLEWorkerV2.verify = recorded


def read(log: str) -> dict[str, list[tuple[list[int], int]]]:
    """By request id, each step's tokens to verify (the bonus token first) and how many were accepted (the bonus token counts)."""
    steps: dict[str, list[tuple[list[int], int]]] = {}
    for line in log.splitlines():
        if line.startswith(MARK):
            _, rid, row, accepted = json.loads(line.removeprefix(MARK))
            steps.setdefault(rid, []).append((row, accepted))
    return steps


def workers(log: str) -> set[str]:
    """Names of the classes that verified."""
    return {json.loads(line.removeprefix(MARK))[0] for line in log.splitlines() if line.startswith(MARK)}

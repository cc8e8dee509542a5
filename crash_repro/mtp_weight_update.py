"""Weights that are sent to a server with MTP: the target's checkpoint ends the scheduler, the assistant's in parts spoil its head.

An update goes to target and assistant alike, whose tensors have the same names and other shapes. E2B's and E4B's assistant has its head
sorted by its centroids after every call that brings weights, also what was sorted before: nothing that it drafts is accepted any more.
A machine without a GPU has synchronous MTP only, which stock SGLang cannot run (``sync_mtp.py``): for stock, that alone is repaired here.
"""

import sys
from pathlib import Path
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

TOKENS = 24
PARTS = 3


def main() -> int:
    """The same weights once more, the target's from disk and the assistant's as tensors in three calls: nothing may change."""
    prompts = shipped.questions(2, 8)
    seen: dict[str, Any] = {}
    for way in ("target from disk", "assistant in parts"):
        extra = {"way": way, "prompts": prompts}
        env = engines.stock_but(shipped.SYNC_MTP)
        seen[way] = engines.ask(shipped.target(), "mtp_weight_update:before_and_after", extra, env=env, **shipped.mtp())
    return int(case.verdict(dict.fromkeys(seen, "updated, tokens and accept length as before"), seen))


def before_and_after(engine: Any, extra: dict[str, Any]) -> str:
    """The client."""
    before = ask(engine, extra["prompts"])
    engine.loop.run_until_complete(engine.tokenizer_manager.flush_cache(timeout_s=30.0))  # an update's own is refused while one is answered
    updated = from_disk(engine) if extra["way"] == "target from disk" else in_parts(engine)
    after = ask(engine, extra["prompts"])
    print(f"tokens and accept length before {before}, after {after}")
    if not updated:
        return "not updated"
    same = [one == other for one, other in zip(before, after, strict=True)]
    if all(same):
        return "updated, tokens and accept length as before"
    return f"other tokens: {not same[0]}; accept length {before[1]:.2f}, then {after[1]:.2f}"


def ask(engine: Any, prompts: list[list[int]]) -> tuple[list[list[int]], float]:
    """Greedy tokens and the accept length."""
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    answers = engine.generate(input_ids=prompts, sampling_params=sampling)
    steps = sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
    return [answer["output_ids"] for answer in answers], sum(len(answer["output_ids"]) for answer in answers) / steps


def from_disk(engine: Any) -> bool:
    """Load the target's checkpoint once more."""
    return bool(engine.update_weights_from_disk(str(shipped.target()))[0])


def in_parts(engine: Any) -> bool:
    """Send the assistant's tensors once more, the first of each three last."""
    from safetensors.torch import load_file
    from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput
    from sglang.srt.utils import MultiprocessingSerializer

    tensors = list(load_file(Path(shipped.mtp()["speculative_draft_model_path"]) / "model.safetensors").items())
    engine.begin_weight_update("draft")
    replies = []
    for first in reversed(range(PARTS)):
        payload = [MultiprocessingSerializer.serialize(tensors[first::PARTS])]
        request = UpdateWeightsFromTensorReqInput(serialized_named_tensors=payload, selector="draft")
        replies.append(engine.loop.run_until_complete(engine.tokenizer_manager.update_weights_from_tensor(request, None))[0])
    engine.end_weight_update()
    return all(replies)


if __name__ == "__main__":
    sys.exit(main())

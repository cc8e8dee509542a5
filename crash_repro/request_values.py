"""Numbers, ids and fields that no tensor can hold reach the scheduler, and one request ends the server. Needs no GPU.

``python crash_repro/request_values.py NAME`` sends one of the requests alone, each of which ends stock's engine.
"""

import asyncio
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

IDS = [2, 300, 301]
REQUESTS: dict[str, dict[str, Any]] = {
    "an id outside the vocabulary": {"input_ids": [2, 5000]},
    "a negative id in a batch": {"input_ids": [[2, 300], [2, -1]]},
    "top_k": {"input_ids": IDS, "sampling_params": {"top_k": 2**31}},
    "stop_token_ids": {"input_ids": IDS, "sampling_params": {"stop_token_ids": [5000], "min_new_tokens": 2}},
    "top_logprobs_num": {"input_ids": IDS, "return_logprob": True, "top_logprobs_num": 5000},
    "a list of top_logprobs_num": {"input_ids": IDS, "return_logprob": True, "top_logprobs_num": [3]},
    "logprob_start_len": {"input_ids": IDS, "return_logprob": True, "logprob_start_len": -5},
    "custom_labels": {"input_ids": IDS, "custom_labels": {"anybody": "else"}},
    "lora_id": {"input_ids": IDS, "lora_id": ["none"]},
    "positional_embed_overrides": {"input_ids": IDS, "positional_embed_overrides": "text"},
    "a session's id": {"input_ids": IDS, "session_params": {"id": ["list"]}},
    "the request's id": {"input_ids": IDS, "rid": 5},
}


def main() -> int:
    """What becomes of each request, and of one behind them."""
    named = sys.argv[1:] or list(REQUESTS)
    options = {"skip_tokenizer_init": False, "enable_metrics": True}
    seen = engines.ask(shipped.target("tiny-26b-a4b"), "request_values:send_each", named, **options)
    return int(case.verdict([*(f"{name}: refused" for name in named), "4 tokens"], seen))


def send_each(engine: Any, names: list[str]) -> list[str]:
    """The client."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    async def send(fields: dict[str, Any]) -> Any:
        sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True, **fields.get("sampling_params", {})}
        request = GenerateReqInput(**{**fields, "sampling_params": sampling})
        return await engine.tokenizer_manager.generate_request(request, None).__anext__()

    def outcome(name: str) -> str:
        try:
            engine.loop.run_until_complete(asyncio.wait_for(send(REQUESTS[name]), 60))
        except ValueError as error:
            print(error, flush=True)
            return f"{name}: refused"
        return f"{name}: answered"

    found = [outcome(name) for name in names]
    return [*found, f"{len(engine.loop.run_until_complete(send({'input_ids': IDS}))['output_ids'])} tokens"]


if __name__ == "__main__":
    sys.exit(main())

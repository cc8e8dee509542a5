"""A client of ``engine_fork``: sends a group and tells what the server says of its patches afterwards."""

from typing import Any

from sglang_gemma4.diagnostics import status


def send(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """One answer; its ``meta_info`` holds the rows of the patches that ``extra`` names, as ``doctor --url`` would show them."""
    (answer,) = engine.generate(input_ids=group["prompts"], sampling_params={"temperature": 0, "max_new_tokens": 4, "ignore_eos": True})
    told = engine.loop.run_until_complete(engine.tokenizer_manager.get_internal_state())[0]["sglang_gemma4"]
    rows = {row["name"]: row for row in status.merged(told["scheduler"], told["frontend"])}
    named = {name: rows[name] for name in group["extra"]["patches"]}
    return [{"token_ids": answer["output_ids"], "text": "", "logprobs": [], "meta_info": named}]

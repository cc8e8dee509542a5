"""Clients that answer with what an engine's processes report of the patches: their rows, or all hooks and where they
lead."""

import os
from typing import Any

from sglang_gemma4 import patching
from sglang_gemma4.diagnostics import status
from sglang_gemma4.patches import load_all
from sglang_gemma4.patching import hooks


def processes(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """One answer; its ``meta_info`` tells of the front end's process and, as ``doctor --url`` shows it, of the scheduler's."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    (answer,) = engine.generate(input_ids=group["prompts"], sampling_params={"temperature": 0, "max_new_tokens": 4, "ignore_eos": True})
    told = engine.loop.run_until_complete(engine.tokenizer_manager.get_internal_state())[0].get("sglang_gemma4", {})
    meta = {
        "parent": os.getppid(),
        "environment": dict(os.environ),
        "scheduler": told.get("scheduler"),
        "frontend": told.get("frontend"),
        "outcomes": [vars(outcome) for outcome in patching.report()],
        "registered": {target: [[kind.value, _name(hook)] for kind, hook, _ in found] for target, found in HookRegistry._hooks.items()},
        "patched": sorted(HookRegistry._patched),
        "leads": {hooks.place(hook): _leads(hooks.target_of(hook)) for patch in load_all() for hook in patch.hooks},
    }
    return [{"token_ids": answer["output_ids"], "text": "", "logprobs": [], "meta_info": meta}]


def rows(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """One answer; its ``meta_info`` holds the rows of the patches that ``extra`` names, as ``doctor --url`` would show them."""
    (answer,) = engine.generate(input_ids=group["prompts"], sampling_params={"temperature": 0, "max_new_tokens": 4, "ignore_eos": True})
    told = engine.loop.run_until_complete(engine.tokenizer_manager.get_internal_state())[0]["sglang_gemma4"]
    rows = {row["name"]: row for row in status.merged(told["scheduler"], told["frontend"])}
    named = {name: rows[name] for name in group["extra"]["patches"]}
    return [{"token_ids": answer["output_ids"], "text": "", "logprobs": [], "meta_info": named}]


def _leads(target: Any) -> list[str]:
    """What a call of ``target`` goes through: each wrapper with what it has in its closure, down to the original; of a list its members."""
    if isinstance(target, list):
        return [name for member in target for name in _leads(member)]
    names = []
    while target is not None:
        function = getattr(target, "__func__", target)
        cells = getattr(function, "__closure__", None) or ()
        names.append(" ".join([_name(target), *(_name(cell.cell_contents) for cell in cells)]))
        target = getattr(function, "__wrapped__", None)
    return names


def _name(what: Any) -> str:
    return f"{getattr(what, '__module__', '')}.{getattr(what, '__qualname__', type(what).__qualname__)}"

"""MoE models whose pools are sized by a ratio get a sliding pool of 0.15 of the full one; SGLang: 0.8."""

import logging
from functools import partial
from typing import Any

from sglang_gemma4.patching import Entry, Patch, switches, uses

REGISTRY = "sglang.srt.arg_groups.overrides._MODEL_OVERRIDE_FNS"
logger = logging.getLogger(__name__)


def prefer_ratio(server_args: Any, hf_config: Any) -> dict[str, Any]:
    """A provider of SGLang's model-override registry: the fields it declares, here ``swa_full_tokens_ratio`` or none."""
    from sglang.srt.arg_groups.model_override_base import resolving_view

    from sglang_gemma4.memory import swa_ratio

    given = resolving_view(server_args)
    text = getattr(hf_config, "text_config", hf_config)
    choice = swa_ratio.choose(text, given.swa_full_tokens_ratio, given.max_total_tokens, given.page_size, given.chunked_prefill_size)
    by_window = switches.part_is_on("swa_sizing", PATCH.switch) and given.swa_full_tokens_ratio is None
    logger.info("sglang-gemma4: %s%s", choice.why, "; where swa_sizing does not size the pools" if by_window else "")
    return {} if choice.ratio is None else {"swa_full_tokens_ratio": choice.ratio}


def with_ours(architecture: str) -> list[Any]:
    """SGLang's providers for this architecture, with ours."""
    from sglang.srt.arg_groups.overrides import _MODEL_OVERRIDE_FNS

    return [*_MODEL_OVERRIDE_FNS.get(architecture, ()), prefer_ratio]


PATCH = Patch(
    switch="SGLANG_GEMMA4_POOL_SIZES",
    why="0.8 leaves MoE Gemma 4, whose sliding layers take ten times the bytes of its full ones, 3.6x fewer tokens of context.",
    evidence="srt/arg_groups/fields/schedule.py:150 · pool_configurator.py:801 · runs/2026-11-21-26b-swa-ratio · many requests below "
    "10,000 tokens at once may starve for it (`sglang-gemma4 capacity`)",
    remove_when="SGLang sizes Gemma 4's pools by window and concurrency itself.",
    uses=(uses.moe,),
    hooks=tuple(
        Entry(REGISTRY, architecture, partial(with_ours, architecture), "0b502f2330da")
        for architecture in ("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4UnifiedForConditionalGeneration")
    ),
)

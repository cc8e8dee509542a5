"""Hooks of a server's start: defaults for MTP flags and parsers, refusal of wrong drafts, and sizes of decode graphs."""

import logging
from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import switches, tell, uses
from sglang_gemma4.patching.switches import WITHOUT

FIELDS = (
    *("model_path", "download_dir", "speculative_draft_model_path", "speculative_draft_model_revision", "speculative_algorithm"),
    *("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"),
    *("speculative_adaptive", "speculative_adaptive_config", "quantization", "speculative_draft_model_quantization"),
)

logger = logging.getLogger(__name__)


def fill_in(server_args: Any) -> None:
    """Before SGLang resolves its arguments: add missing flags for the MTP assistant; the operator's own flags are kept."""
    if getattr(server_args, "_resolution_finished", False):  # in a child process: filled in by its parent
        return
    from sglang.srt.arg_groups.overrides import declare_resolution

    from sglang_gemma4.diagnostics.start_checks import one_line
    from sglang_gemma4.speculative import mtp_defaults

    with one_line():
        found = mtp_defaults.missing({name: getattr(server_args, name, None) for name in FIELDS})
    if found:
        said = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in found.items())
        logger.info("sglang-gemma4: for the MTP assistant: %s", said)
        declare_resolution(server_args, "sglang_gemma4.mtp_defaults", **found)


def keep_eagle(original: Callable[..., Any], algorithm: str | None, draft: str | None = None, *args: Any, **kwargs: Any) -> Any:
    """Around SGLang's resolution of the speculative algorithm: keep EAGLE where SGLang would choose FROZEN_KV_MTP, if the draft allows."""
    found = original(algorithm, draft, *args, **kwargs)
    if found != "FROZEN_KV_MTP" or algorithm not in ("NEXTN", "EAGLE"):
        return found
    from sglang_gemma4.diagnostics.start_checks import one_line

    with one_line():
        refuse_frozen(str(draft), *args, **kwargs)
    return "EAGLE"


def refuse_frozen(draft: str, trust_remote_code: bool = False, kwargs: dict[str, Any] | None = None) -> None:
    """Refuse a draft whose class, as SGLang would load it, only reads the target's KV.

    Raises:
        PreflightError: the draft is such a class. EAGLE would give it its own pool, with keys and values from weights in no checkpoint.
    """
    from sglang.srt.models.registry import ModelRegistry
    from sglang.srt.utils.hf_transformers_utils import get_config

    from sglang_gemma4.models.config_files import PreflightError

    architectures = get_config(draft, trust_remote_code=trust_remote_code, **(kwargs or {})).architectures
    kind, name = ModelRegistry.resolve_model_cls(architectures)
    if hasattr(kind, "bind_frozen_kv_context"):
        raise PreflightError(
            f"{switches.FORCE_EAGLE}=1: {draft} loads as {name}, a frozen assistant: its layers have no keys and values of their own, "
            f"and EAGLE drafts with nothing else; set {switches.FORCE_EAGLE}=0 to draft with it by FROZEN_KV_MTP, or give a draft "
            "trained for EAGLE"
        )


NAME = "graph_sizes"

DRAFT_STEPS = 3

RUNNING_UNDER_SPECULATION = 48
"""SGLang's default of requests running at once, set only after the graph sizes (srt/arg_groups/speculative_hook.py:992)."""


def choose(original: Callable[[Any, int], list[int]], server_args: Any, max_bs: int) -> list[int]:
    """Around ``generate_decode_cuda_graph_batch_sizes``, which SGLang calls if the operator gave no sizes: sizes for MoE models."""
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view

    from sglang_gemma4.models.schedule import graph_sizes

    given, config = resolving_view(server_args), model_config_of(server_args)
    text = config.hf_text_config
    ours = config.hf_config.architectures[0].startswith("Gemma4") and getattr(text, "enable_moe_block", False)
    if not ours or given.disable_cuda_graph_padding:
        return original(server_args, max_bs)
    drafts = given.speculative_algorithm is not None
    if drafts and not uses.asks_graph_sizes():
        return original(server_args, max_bs)
    rows = given.speculative_num_draft_tokens or (given.speculative_num_steps or DRAFT_STEPS) + 1 if drafts else 1
    running = given.max_running_requests or (RUNNING_UNDER_SPECULATION if drafts else max_bs)
    step = graph_sizes.Step(text.num_experts, text.top_k_experts, rows)
    found = sorted({*graph_sizes.sizes(step, min(max_bs, running)), max_bs})
    tell(NAME, f"{len(found)} batch sizes for decode graphs, SGLang's are {len(original(server_args, max_bs))}: {found}")
    return found


def parser_defaults_choose(result: dict[str, str], server_args: Any) -> dict[str, str]:
    """After ``_architecture_parser_defaults``: add ``gemma4`` for each parser that the operator did not give."""
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.arg_groups.overrides import resolving_view

    given = resolving_view(server_args)
    missing = [field for field in ("reasoning_parser", "tool_call_parser") if getattr(given, field) is None]
    kind = str(getattr(model_config_of(server_args).hf_config, "model_type", "")) if missing else ""
    if not kind.startswith("gemma4") or kind.endswith("assistant"):
        return result
    named = " and ".join(f"--{field.replace('_', '-')} gemma4" for field in missing)
    tell("parser_defaults", f"{named}, since none was given ({WITHOUT}=parser_defaults leaves answers as the model writes them)")
    return {**result, **dict.fromkeys(missing, "gemma4")}


def without_masks(_result: None, backend: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``ReasonerGrammarBackend.__init__``, which wraps the grammar backend if there is a reasoning parser: add missing functions.

    It takes three functions from that backend for answers without a grammar (``--enable-strict-thinking``). Only xgrammar's backend has
    them, and such answers exist only with xgrammar.
    """
    for name in ("allocate_vocab_mask", "move_vocab_mask", "apply_vocab_mask"):
        if not hasattr(backend.grammar_backend, name):
            setattr(backend.grammar_backend, name, None)

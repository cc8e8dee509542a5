"""Decides whether a server captures prefills in CUDA graphs, and of which sizes, unless the operator chose.

This happens in SGLang's argument resolution.
"""

import logging
from typing import Any

from sglang.srt.arg_groups.overrides import declare_resolution, model_config_of, resolving_view
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, with_phase

from sglang_gemma4.models.schedule import prefill_sizes
from sglang_gemma4.patching import switches

logger = logging.getLogger(__name__)
SOURCE = "sglang_gemma4_prefill_graph"
MULTIMODAL, TEXT = frozenset({"Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"}), "Gemma4ForCausalLM"


def is_ours(server_args: Any) -> bool:
    """Whether the server's model is one whose prefills the package captures."""
    return bool({*MULTIMODAL, TEXT} & set(model_config_of(server_args).hf_config.architectures))


def keep_eager(server_args: Any) -> None:
    """Capture no prefill graphs."""
    config = with_phase(resolving_view(server_args).cuda_graph_config, Phase.PREFILL, backend=Backend.DISABLED)
    declare_resolution(server_args, SOURCE, cuda_graph_config=config)


def set_sizes(server_args: Any, sizes: list[int]) -> None:
    """Capture prefill graphs of these token counts, ascending."""
    config = with_phase(resolving_view(server_args).cuda_graph_config, Phase.PREFILL, bs=sizes, max_bs=sizes[-1])
    declare_resolution(server_args, SOURCE, cuda_graph_config=config)


def choose_sizes(server_args: Any) -> None:
    """Choose sizes, before SGLang reserves memory for graphs, unless the operator gave them.

    The operator may give only the largest.
    """
    given = resolving_view(server_args)
    phase = given.cuda_graph_config.prefill
    if phase.backend != Backend.BREAKABLE or phase.bs is not None or not is_ours(server_args):
        return
    limit = phase.max_bs
    if limit is None:
        config, fast = model_config_of(server_args).hf_text_config, switches.part_is_on("yoco", "SGLANG_GEMMA4_YOCO")
        limits = (prefill_sizes.worth_up_to(config, fast, given.tp_size), given.chunked_prefill_size, given.max_total_tokens)
        limit = min(size for size in limits if size is not None and size > 0)
    set_sizes(server_args, prefill_sizes.capture_sizes(limit))


def drop_sizes_beyond_a_chunk(server_args: Any) -> None:
    """Drop sizes larger than a chunk, after SGLang has chosen ``--chunked-prefill-size`` by the GPU's memory."""
    given = resolving_view(server_args)
    phase, chunk = given.cuda_graph_config.prefill, given.chunked_prefill_size
    his = {(Phase.PREFILL, "bs"), (Phase.PREFILL, "max_bs")} & getattr(server_args, "_cuda_graph_config_locked", set())
    if phase.backend == Backend.BREAKABLE and not his and chunk is not None and 0 < chunk < phase.bs[-1] and is_ours(server_args):
        set_sizes(server_args, prefill_sizes.capture_sizes(chunk))


def keep_text_eager(server_args: Any) -> None:
    """If our graphs are off, keep SGLang from capturing the prefills of a Gemma 4 that serves text only.

    SGLang treats such a server as a text model. A multimodal checkpoint then prefills with ``--language-model-only``
    as it does without. A text-only checkpoint whose layers share KV can start; SGLang's capture raises there.
    """
    given, config = resolving_view(server_args), model_config_of(server_args)
    if switches.part_is_on("prefill_graph", "SGLANG_GEMMA4_PREFILL_GRAPH") or given.cuda_graph_config.prefill.backend != Backend.BREAKABLE:
        return
    architectures, shared = config.hf_config.architectures, getattr(config.hf_text_config, "num_kv_shared_layers", None)
    if MULTIMODAL & set(architectures) and given.language_model_only:
        logger.info("sglang-gemma4: --language-model-only: prefills run without CUDA graphs, as with the towers")
    elif TEXT in architectures and shared:
        logger.info("sglang-gemma4: prefills run without CUDA graphs: SGLang captures none where layers share KV (%d of them)", shared)
    else:
        return
    keep_eager(server_args)

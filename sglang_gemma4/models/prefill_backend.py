"""Whether a server captures its prefills, in SGLang's resolution of the arguments. The operator's own choice never gets here."""

import logging
from typing import Any

from sglang.srt.arg_groups.overrides import declare_resolution, model_config_of, resolving_view
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, with_phase

from sglang_gemma4 import switches

logger = logging.getLogger(__name__)
SOURCE = "sglang_gemma4_prefill_graph"
MULTIMODAL, TEXT = "Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"


def keep_eager(server_args: Any) -> None:
    """No prefill graphs."""
    config = with_phase(resolving_view(server_args).cuda_graph_config, Phase.PREFILL, backend=Backend.DISABLED)
    declare_resolution(server_args, SOURCE, cuda_graph_config=config)


def set_sizes(server_args: Any, sizes: list[int]) -> None:
    """Prefill graphs of these token counts, ascending."""
    config = with_phase(resolving_view(server_args).cuda_graph_config, Phase.PREFILL, bs=sizes, max_bs=sizes[-1])
    declare_resolution(server_args, SOURCE, cuda_graph_config=config)


def keep_text_eager(server_args: Any) -> None:
    """A Gemma 4 that serves text alone is a text model for SGLang, whose prefills it captures on CUDA: not without our switch.

    So a multimodal checkpoint prefills with ``--language-model-only`` as it does without, and a text-only checkpoint whose layers share KV,
    on which the capture raises, starts.
    """
    given, config = resolving_view(server_args), model_config_of(server_args)
    if switches.is_on("SGLANG_GEMMA4_PREFILL_GRAPH") or given.cuda_graph_config.prefill.backend != Backend.BREAKABLE:
        return
    architectures, shared = config.hf_config.architectures, getattr(config.hf_text_config, "num_kv_shared_layers", None)
    if MULTIMODAL in architectures and given.language_model_only:
        logger.info("sglang-gemma4: --language-model-only: prefills run without CUDA graphs, as with the towers")
    elif TEXT in architectures and shared:
        logger.info("sglang-gemma4: prefills run without CUDA graphs: SGLang captures none where layers share KV (%d of them)", shared)
    else:
        return
    keep_eager(server_args)

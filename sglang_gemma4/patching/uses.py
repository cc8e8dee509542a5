"""What a server has to be for a patch to do anything in it: the words of ``Part.uses``.

Each word is a function from :class:`Server` to the reason why a patch that needs it is idle there, or None. A patch names
the words it needs, and the first reason is the one that is shown.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

from sglang_gemma4.patching import switches
from sglang_gemma4.patching.this_server import Server

HOPPER = (9, 0)
LAID_OUT_AS = "laid_out_as"
"""Key of a ``quantization_config`` that was translated (``models/gptq_config.py``): what the checkpoint's own layout is."""


Need = Callable[[Server], str | None]


def kernels(server: Server) -> str | None:
    """Triton's kernels run."""
    return None if server.kernels else "no CUDA GPU"


def any_batch(server: Server) -> str | None:
    """A row's rounding may depend on the rows that are computed with it."""
    asked = server.arguments.enable_deterministic_inference
    return "--enable-deterministic-inference: a row's bits would depend on its batch" if asked else None


def hopper(server: Server) -> str | None:
    """The GPU is a Hopper or later."""
    if server.capability is None:
        return "no CUDA GPU"
    return None if server.capability >= HOPPER else f"compute capability {'.'.join(map(str, server.capability))}, not 9.0 or later"


def moe(server: Server) -> str | None:
    """The model has experts."""
    return None if getattr(server.text, "enable_moe_block", False) else "a dense model, without experts"


def asks_beside(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the operator asks for mixed batches, also where they were not measured: the switch or a limit is set."""
    given = [environ.get(name, "").strip() for name in (switches.BESIDE, switches.BESIDE_TOKENS, switches.BESIDE_GAP)]
    return any(one and one not in switches.POLICY_WORDS for one in given)


def mixes_as_asked(given: Any, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether mixed batches were asked for and the flags of a ``ServerArgs`` allow them (``beside_reasons`` has the whole list)."""
    if not asks_beside(environ):
        return False
    measured = given.tp_size > 1 and not environ.get(switches.BESIDE_TOKENS, "").strip()  # ranks would measure different times
    parallel = given.pp_size > 1 or given.enable_dp_attention
    trees = (given.speculative_eagle_topk or 1) > 1
    return not (measured or parallel or trees or given.enable_lora or given.lora_paths or given.enable_deterministic_inference)


def joined_steps(server: Server) -> str | None:
    """Mixed batches are on: for models and GPUs on which they were measured, or because the operator asks."""
    return None if asks_beside() else moe(server) or hopper(server) or _measured_cache(server)


def prefill_turns(server: Server) -> str | None:
    """Prefills alternate with decode steps, on models for which a decode step between two prefills was measured to pay."""
    if mixes_as_asked(server.arguments):
        return "prompts go in one forward with running requests, as was asked"
    return None if server.shared_layers else "not E2B or E4B, on which it was measured; --prefill-decode-interval 1 turns it on"


def _measured_cache(server: Server) -> str | None:
    given = server.arguments
    others = {
        "--enable-unified-memory": given.enable_unified_memory,
        f"--kv-cache-dtype {given.kv_cache_dtype}": kv_format(server) is None,
        "--enable-hierarchical-cache": given.enable_hierarchical_cache,
    }
    other = next((flag for flag, is_so in others.items() if is_so), None)
    return None if other is None else f"{other}, over which it was not measured"


def shared_kv(server: Server) -> str | None:
    """Layers of the model share keys and values."""
    return None if server.shared_layers else "no layer of the model shares KV"


def shared_kv_or_draft(server: Server) -> str | None:
    """Layers of the model or of an MTP draft share keys and values."""
    return None if server.shared_layers or mtp(server) is None else "no layer shares KV, and there is no MTP draft"


def layer_embeddings(server: Server) -> str | None:
    """The model has per-layer embeddings."""
    return None if getattr(server.text, "hidden_size_per_layer_input", 0) else "the model has no per-layer embeddings"


def plain_layers(server: Server) -> str | None:
    """The model's layers end without per-layer embeddings."""
    return "every layer ends with per-layer embeddings" if layer_embeddings(server) is None else None


def text_only(server: Server) -> str | None:
    """The checkpoint is a text-only one."""
    return None if server.architecture.endswith("ForCausalLM") else f"the checkpoint is {server.architecture}, not text-only"


def unified(server: Server) -> str | None:
    """The checkpoint is a unified one (12B)."""
    return None if "Unified" in server.architecture else f"the checkpoint is {server.architecture}, not a unified one"


def images(server: Server) -> str | None:
    """The server takes images."""
    return _tower(server, "vision_config", "images")


def audio(server: Server) -> str | None:
    """The server takes audio."""
    return _tower(server, "audio_config", "audio")


def media(server: Server) -> str | None:
    """The server takes images or audio."""
    return images(server) and audio(server) and "the server takes text only"


def _tower(server: Server, name: str, what: str) -> str | None:
    if server.arguments.language_model_only:
        return "--language-model-only"
    if server.arguments.enable_multimodal is False or getattr(server.config, name, None) is None:
        return f"the server takes no {what}"
    return None


def two_way_images(server: Server) -> str | None:
    """Tokens of an image attend both ways."""
    two_way = getattr(server.text, "use_bidirectional_attention", None) == "vision"
    return images(server) or (None if two_way else "images attend one way in this model")


def no_towers(server: Server) -> str | None:
    """The operator asked for the language model alone."""
    return None if server.arguments.language_model_only else "--language-model-only is not given"


def mtp(server: Server) -> str | None:
    """An MTP draft speculates."""
    return None if server.arguments.speculative_algorithm == "FROZEN_KV_MTP" else "no MTP draft (--speculative-draft-model-path)"


def dspark(server: Server) -> str | None:
    """A DSpark draft speculates."""
    return None if server.arguments.speculative_algorithm == "DSPARK" else "no DSpark draft (--speculative-algorithm DSPARK)"


def draft_given(server: Server) -> str | None:
    """A draft model was named."""
    return None if server.arguments.speculative_draft_model_path else "no draft model (--speculative-draft-model-path)"


def speculation(server: Server) -> str | None:
    """The server speculates, by whatever algorithm."""
    return None if server.arguments.speculative_algorithm else "no speculative decoding"


def adaptive(server: Server) -> str | None:
    """The draft's length adapts."""
    return None if server.arguments.speculative_adaptive else "--speculative-adaptive is not given"


def synchronous(server: Server) -> str | None:
    """The scheduler's loop does not overlap with the GPU's work."""
    return None if server.arguments.disable_overlap_schedule else "scheduling overlaps (--disable-overlap-schedule is not given)"


def triton_prefill(server: Server) -> str | None:
    """The triton backend prefills."""
    return None if server.prefill_backend == "triton" else f"--attention-backend {server.prefill_backend} prefills, not triton"


def triton_decode(server: Server) -> str | None:
    """The triton backend decodes."""
    return None if server.decode_backend == "triton" else f"--attention-backend {server.decode_backend} decodes, not triton"


def asks_graph_sizes(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the operator wants our batch sizes of decode graphs with speculation too, where they were measured to bring nothing."""
    return bool(environ.get(switches.GRAPH_SIZES, "").strip())


def padded_graphs(server: Server) -> str | None:
    """Padding a batch to a captured size costs enough."""
    plain = speculation(server) is not None
    return None if plain or asks_graph_sizes() else f"with speculation padding costs little; {switches.GRAPH_SIZES}=1 asks for it"


def decode_graphs(server: Server) -> str | None:
    """Decode steps are replayed from CUDA graphs."""
    return None if graphs_of(server, "decode") else "no decode CUDA graphs"


def prefill_graphs(server: Server) -> str | None:
    """Prefills are replayed from CUDA graphs."""
    return None if graphs_of(server, "prefill") else "no prefill CUDA graphs"


def prefill_graphs_wanted(server: Server) -> str | None:
    """The operator leaves prefill graphs to SGLang and this package."""
    given = server.arguments
    if given.disaggregation_mode == "decode":
        return "a decode server of a pair prefills nothing"
    off = (given.disable_prefill_cuda_graph, given.disable_cuda_graph, given.cuda_graph_backend_prefill == "disabled")
    return "prefill CUDA graphs are switched off by a flag" if any(off) else None


def graphs_of(server: Server, phase: str) -> bool:
    """Whether a phase, "prefill" or "decode", is replayed from CUDA graphs."""
    chosen = getattr(getattr(server.arguments.cuda_graph_config, phase, None), "backend", None)
    return getattr(chosen, "value", chosen) not in (None, "disabled")


def several_ranks(server: Server) -> str | None:
    """The model is split over GPUs."""
    return None if server.arguments.tp_size > 1 else "one rank (--tp-size 1)"


def pipeline(server: Server) -> str | None:
    """The layers are split over pipeline stages."""
    return None if server.arguments.pp_size > 1 else "one pipeline stage (--pp-size 1)"


def data_parallel_attention(server: Server) -> str | None:
    """Ranks of one model attend to requests of their own."""
    return None if server.arguments.attn_dp_size > 1 else "one attention group (--attn-dp-size 1)"


def disaggregation(server: Server) -> str | None:
    """The server is one of a prefill/decode pair."""
    return None if server.arguments.disaggregation_mode != "null" else "not one of a prefill/decode pair (--disaggregation-mode)"


def host_cache(server: Server) -> str | None:
    """KV lies on the host, too (HiCache)."""
    return None if server.arguments.enable_hierarchical_cache else "--enable-hierarchical-cache is not given"


def unified_memory(server: Server) -> str | None:
    """Full and sliding layers share one buffer."""
    return None if server.arguments.enable_unified_memory else "--enable-unified-memory is not given"


def two_pools(server: Server) -> str | None:
    """Full and sliding layers have a pool each, of a size fixed at the start."""
    return "--enable-unified-memory: the pools' split follows the load" if server.arguments.enable_unified_memory else None


def radix_cache(server: Server) -> str | None:
    """Prefixes are kept for later requests."""
    return "--disable-radix-cache" if server.arguments.disable_radix_cache else None


def lora(server: Server) -> str | None:
    """The server takes LoRA adapters."""
    asked = server.arguments.enable_lora or server.arguments.lora_paths
    return None if asked else "no LoRA adapters (--enable-lora, --lora-paths)"


def memory_saver(server: Server) -> str | None:
    """Memory can be released and resumed."""
    return None if server.arguments.enable_memory_saver else "--enable-memory-saver is not given"


def metrics(server: Server) -> str | None:
    """The server exports metrics."""
    return None if server.arguments.enable_metrics else "--enable-metrics is not given"


def quantised(server: Server) -> str | None:
    """The model's weights are quantised, in the checkpoint or as they are loaded."""
    if server.arguments.quantization or getattr(server.config, "quantization_config", None):
        return None
    return "the weights are not quantised"


def four_bits(server: Server) -> str | None:
    """Weights of the model have 4 bits."""
    from sglang_gemma4.start.cuda_modules import has_four_bits

    return None if has_four_bits(vars(server.config)) else "no weights have 4 bits"


def gptq(server: Server) -> str | None:
    """The checkpoint's tensors were laid out as GPTQ's or AWQ's, and are read as compressed-tensors'."""
    given = getattr(server.config, "quantization_config", None)
    return (
        None
        if isinstance(given, Mapping) and given.get(LAID_OUT_AS)
        else "the checkpoint is not in GPTQ's or AWQ's layout, or not read as another"
    )


def four_bit_rows(server: Server) -> str | None:
    """4-bit dense weights stay as loaded."""
    if switches.four_bit_rows(server.capability):
        return None
    given = os.environ.get(switches.FOUR_BIT_ROWS, "").strip()
    return f"{switches.FOUR_BIT_ROWS}=0" if given else f"no Hopper, and {switches.FOUR_BIT_ROWS} is not given"


def random_weights(server: Server) -> str | None:
    """Weights are made up."""
    return None if server.arguments.load_format == "dummy" else "weights are loaded (--load-format dummy is not given)"


def gemma4_parser(server: Server) -> str | None:
    """Answers are read by one of the gemma4 parsers."""
    parsers = server.arguments.reasoning_parser, server.arguments.tool_call_parser
    return None if "gemma4" in parsers else "neither parser is gemma4 (--reasoning-parser, --tool-call-parser)"


def tool_grammars(server: Server) -> str | None:
    """Gemma 4's tool calls can be constrained."""
    if server.arguments.tool_call_parser != "gemma4":
        return "--tool-call-parser is not gemma4"
    backend = server.arguments.grammar_backend
    return None if backend == "xgrammar" else f"--grammar-backend {backend}, not xgrammar"


def kv_format(server: Server) -> str | None:
    """The KV cache is one that this package's attention reads by levels."""
    kind = server.arguments.kv_cache_dtype
    if kind.endswith("_per_token_head"):
        return None
    if kind not in ("fp8_e4m3", "fp8_e5m2"):
        return f"--kv-cache-dtype {kind} is read as it is"
    return None if "triton" in (server.prefill_backend, server.decode_backend) else "no triton backend reads the fp8 cache"

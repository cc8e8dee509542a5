"""Hooks for SGLang's attention backends: our kernels, and the sizes of their tables."""

from typing import Any

from sglang_gemma4.models import triton_metadata
from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import decline, is_on, note, switches, tell

TARGETS = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration")


def create_triton_backend(runner: Any) -> Any:
    """The backend for ``--attention-backend triton``: ours for a Gemma 4 target, SGLang's for every other model.

    An assistant keeps SGLang's backend: its query is one position past the last key it reads. Distance ``window - 1``
    therefore covers ``window - 1`` keys, and SGLang may already have freed the key before them.
    """
    architectures = runner.model_config.hf_config.architectures or ()
    if runner.is_draft_worker or not any(name in TARGETS for name in architectures):
        from sglang.srt.layers.attention.attention_registry import create_triton_backend as create_stock

        return create_stock(runner)
    from sglang_gemma4.attention.triton_window import Gemma4TritonAttnBackend

    return Gemma4TritonAttnBackend(runner)


def prepare_triton(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: install our attention kernels for a Gemma 4 target or assistant."""
    if is_on("kv_formats"):
        read_levels(backend, runner)  # first: it gives the backend its class
    if is_on("verify_attention"):
        take_verify(backend, runner)
    if is_on("decode_attention"):
        take_decode(backend, runner)
    if is_on("balanced_parts"):
        balance(backend, runner)
    if is_on("prefill_attention"):
        take_prefill(backend, runner)
    if is_on("step_metadata"):
        triton_metadata.take(backend, runner)
    if is_on("flash_prefill"):
        prefill_by_flash(backend, runner)  # last: it extends prefill_attention's kernel and checks kv_formats' class


def take_verify(backend: Any, runner: Any) -> None:
    """Our verify attention, for a Gemma 4 target with a draft. Deterministic inference verifies as it prefills."""
    if runner.is_draft_worker or not backend.topk or backend.enable_deterministic or not named_gemma4(runner.model_config.hf_config):
        return
    from sglang_gemma4.attention.verify import VerifyAttention

    backend.use_verify_shared_kv, backend.use_verify_splitkv = False, True
    backend.verify_splitkv_fwd = VerifyAttention(backend.topk)


def take_decode(backend: Any, runner: Any) -> None:
    """Our decode attention, for a Gemma 4 target or its assistant.

    Keys are split by ``--triton-attention-split-tile-size``, which SGLang reads in more modes than its help names. With
    ``--enable-deterministic-inference`` alone they are split by SGLang's own size, 256.
    """
    if not named_gemma4(runner.model_config.hf_config):
        return
    from sglang.srt.runtime_context import get_exec

    from sglang_gemma4.attention.decode import DecodeAttention

    part_keys = get_exec().kernel.triton_attention_split_tile_size or backend.split_tile_size
    backend.decode_attention_fwd = DecodeAttention(backend.decode_attention_fwd, part_keys)
    if part_keys is not None:
        tell("decode_attention", f"decode attention splits a request's keys by its length alone, {part_keys} keys a part")


def balance(backend: Any, runner: Any) -> None:
    """Enable balanced parts of few-query attention, for a Gemma 4 target or its assistant."""
    if backend.enable_deterministic or not named_gemma4(runner.model_config.hf_config):
        return
    from sglang_gemma4.kernels.attention.few_query_attention import want_balanced

    want_balanced(True)


def take_prefill(backend: Any, runner: Any) -> None:
    """Our prefill attention, for a Gemma 4 target. Deterministic inference never calls what this replaces."""
    if runner.is_draft_worker or backend.enable_deterministic or not named_gemma4(runner.model_config.hf_config):
        return
    import torch

    from sglang_gemma4.attention.prefill import PrefillAttention
    from sglang_gemma4.kernels.attention.tiles import smaller_than_measured
    from sglang_gemma4.kernels.card import card

    backend.extend_attention_fwd = PrefillAttention(backend.extend_attention_fwd)
    dims = (runner.model_config.swa_head_dim, runner.model_config.head_dim)
    said = smaller_than_measured(dims, runner.dtype, card(torch.device(runner.device)))
    if said:
        tell("prefill_attention", said)


def prefill_by_flash(backend: Any, runner: Any) -> None:
    """For a Gemma 4 target: FlashAttention-4 takes the long prefills, ``prefill_attention``'s kernel the others."""
    from sglang_gemma4.attention import flash_choice, flash_prefill
    from sglang_gemma4.attention.prefill import PrefillAttention
    from sglang_gemma4.attention.quantised import ReadsLevels

    if runner.is_draft_worker or not named_gemma4(runner.model_config.hf_config):
        return
    problem = flash_prefill.reason_against() or flash_prefill.unused_by(runner, isinstance(backend, ReadsLevels))
    ours = backend.extend_attention_fwd
    if problem is None and not isinstance(ours, PrefillAttention):
        problem = "prefill_attention is off, beside whose kernel it takes the long prefills"
    if problem is not None:
        decline("flash_prefill", problem)
        return
    from sglang.kernels.ops.attention.flash_attention_v4 import flash_attn_varlen_func

    choice = flash_choice.chosen(flash_attn_varlen_func, flash_prefill.kinds_of(runner.model), runner.dtype, backend.device)
    tell("flash_prefill", f"FlashAttention-4 {choice.took}, prefills {'; '.join(choice.taken) or 'no kind of layer'}")
    if not choice.taken:
        decline("flash_prefill", f"our kernel prefills layers of {'; '.join(choice.left)}")
        return
    for left in choice.left:
        note("flash_prefill", f"our kernel prefills layers of {left}")
    ours.flash = choice.flash


def make_room_for_draft_tokens(_result: None, backend: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TRTLLMHAAttnBackend.__init__``: make page-table rows as long as ``req_to_token``'s, for draft tokens."""
    backend.max_num_pages = max(backend.max_num_pages, -(-backend.req_to_token.shape[1] // backend.page_size))


def create_flash_attention(runner: Any) -> Any:
    """The backend for ``--attention-backend fa4``. Its CUDA graphs' tables are allocated later, as wide as set here."""
    from sglang.srt.layers.attention.attention_registry import create_flashattention_v4_backend

    backend = create_flashattention_v4_backend(runner)
    if hasattr(backend, "max_context_len"):  # its diffusion variant is another class
        backend.max_context_len = max(backend.max_context_len, backend.req_to_token.shape[1])
        backend.max_num_pages = -(-backend.max_context_len // backend.page_size)
    return backend


PLAIN = ("fp8_e4m3", "fp8_e5m2")
"""SGLang's own formats of a quantised cache."""


def unmasked(config: Any) -> bool:
    """Whether images attend in both directions and only SGLang's masks say so, which only its own kernels take."""
    from sglang_gemma4.attention import image_spans

    return image_spans.bidirectional(config) and not switches.part_is_on("image_masks", "SGLANG_GEMMA4_MEDIA_FIXES")


def shares_kv(config: Any) -> bool:
    """Whether layers of this model read another layer's KV. Stock's prefill then does not compile over an fp8 cache."""
    text = getattr(config, "text_config", config)
    return bool(getattr(text, "num_kv_shared_layers", 0))


def read_levels(backend: Any, runner: Any) -> None:
    """Give the backend of a Gemma 4 target or assistant a class that reads the quantised values of a KV cache."""
    if not readable(backend, runner):
        return
    config = runner.model_config.hf_config
    if runner.kv_cache_dtype_str in PLAIN and (runner.is_draft_worker or not shares_kv(config)):
        if not runner.is_draft_worker:
            decline("kv_formats", "SGLang's kernels read an fp8 cache where no layers share KV")
        return
    if runner.kv_cache_dtype_str in PLAIN and unmasked(config):
        decline(
            "kv_formats", "images attend both ways in this model, and the patch image_masks is off: SGLang's kernels read the fp8 cache"
        )
        return
    from sglang_gemma4.attention.quantised import READERS

    backend.__class__ = READERS.get(type(backend), type(backend))


def readable(backend: Any, runner: Any) -> bool:
    """Whether the cache is quantised, and this backend of a Gemma 4 target or assistant could read its values."""
    from sglang_gemma4.kernels.kv_cache import formats

    quantised = formats.named(runner.kv_cache_dtype_str) is not None or runner.kv_cache_dtype_str in PLAIN
    return quantised and named_gemma4(runner.model_config.hf_config) and backend.dcp_size <= 1 and not backend.enable_deterministic

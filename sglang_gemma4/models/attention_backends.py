"""SGLang's attention backends, and what they keep."""

from typing import Any

from sglang_gemma4.models.config_files import named_gemma4
from sglang_gemma4.patching import decline, note, tell

TARGETS = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration")


def create_triton_backend(runner: Any) -> Any:
    """The backend for ``--attention-backend triton``: ours for a Gemma 4 target, SGLang's for every other model.

    An assistant keeps SGLang's: its query stands one past the last key it reads, so distance ``window - 1`` is
    ``window - 1`` keys, and SGLang may already have freed the one before.
    """
    architectures = runner.model_config.hf_config.architectures or ()
    if runner.is_draft_worker or not any(name in TARGETS for name in architectures):
        from sglang.srt.layers.attention.attention_registry import create_triton_backend as create_stock

        return create_stock(runner)
    from sglang_gemma4.attention.triton_window import Gemma4TritonAttnBackend

    return Gemma4TritonAttnBackend(runner)


def take_verify(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: a Gemma 4 target that verifies drafts. Deterministic inference verifies as it prefills."""
    if runner.is_draft_worker or not backend.topk or backend.enable_deterministic or not named_gemma4(runner.model_config.hf_config):
        return
    from sglang_gemma4.attention.verify import VerifyAttention

    backend.use_verify_shared_kv, backend.use_verify_splitkv = False, True
    backend.verify_splitkv_fwd = VerifyAttention(backend.topk)


def take_decode(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: a Gemma 4 target or its assistant.

    Keys are split as ``--triton-attention-split-tile-size`` says, which SGLang reads in other modes than its help names; with
    ``--enable-deterministic-inference`` alone by SGLang's own size, 256.
    """
    if not named_gemma4(runner.model_config.hf_config):
        return
    from sglang.srt.runtime_context import get_exec

    from sglang_gemma4.attention.decode import DecodeAttention

    part_keys = get_exec().kernel.triton_attention_split_tile_size or backend.split_tile_size
    backend.decode_attention_fwd = DecodeAttention(backend.decode_attention_fwd, part_keys)
    if part_keys is not None:
        tell("decode_attention", f"decode attention splits a request's keys by its length alone, {part_keys} keys a part")


def balance(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: a Gemma 4 target or its assistant."""
    if backend.enable_deterministic or not named_gemma4(runner.model_config.hf_config):
        return
    from sglang_gemma4.kernels.attention.few_query_attention import want_balanced

    want_balanced(True)


def take_prefill(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``: a Gemma 4 target. Deterministic inference never calls what this replaces."""
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


def prefill_by_flash(_result: None, backend: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``TritonAttnBackend.__init__``, and after ``prefill_attention`` has put its kernel there and ``kv_formats`` its class."""
    from sglang_gemma4.attention import flash_choice, flash_prefill
    from sglang_gemma4.attention.prefill import PrefillAttention
    from sglang_gemma4.attention.quantised import ReadsLevels

    if runner.is_draft_worker or not named_gemma4(runner.model_config.hf_config):
        return
    problem = flash_prefill.problem() or flash_prefill.unused_by(runner, isinstance(backend, ReadsLevels))
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
    """After ``TRTLLMHAAttnBackend.__init__``: rows as long as a request's in ``req_to_token``, which has that room."""
    backend.max_num_pages = max(backend.max_num_pages, -(-backend.req_to_token.shape[1] // backend.page_size))


def create_flash_attention(runner: Any) -> Any:
    """The backend for ``--attention-backend fa4``; the tables of its CUDA graphs are allocated later, as wide as these say."""
    from sglang.srt.layers.attention.attention_registry import create_flashattention_v4_backend

    backend = create_flashattention_v4_backend(runner)
    if hasattr(backend, "max_context_len"):  # its diffusion variant is another class
        backend.max_context_len = max(backend.max_context_len, backend.req_to_token.shape[1])
        backend.max_num_pages = -(-backend.max_context_len // backend.page_size)
    return backend

"""Refuse arguments that cannot work before any weight is loaded: one line with the value, the limit and the remedy.

Reads config.json files only; neither torch nor sglang is imported.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from sglang_gemma4 import switches
from sglang_gemma4.diagnostics.text_geometry import TextGeometry, is_unified, text_geometry
from sglang_gemma4.models.config_files import ASSISTANTS, PreflightError, is_assistant, is_gemma4, read_config
from sglang_gemma4.speculative.mtp_defaults import AUTO, sibling

# sglang/srt/arg_groups/model_hook.py:646
ATTENTION_BACKENDS = ("triton", "fa4", "trtllm_mha", "aiter", "ascend", "intel_xpu", "intel_amx")
BACKEND_FLAGS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")

# Backends whose prefill can mask images, in SGLang or with this package; intel_amx is also the CPU engine's name.
IMAGE_BACKENDS = ("triton", "fa4")

# With these SGLang's triton prefill passes keys of another dtype than the queries to its kernel if a layer reads another layer's KV.
FP8_CACHES = ("fp8_e4m3", "fp8_e5m2")

# What check() reads of SGLang's ServerArgs.
FIELDS = (
    "model_path",
    "revision",
    "download_dir",
    *BACKEND_FLAGS,
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "context_length",
    "max_total_tokens",
    "swa_full_tokens_ratio",
    "disable_hybrid_swa_memory",
    "enable_pdmux",
    "enable_dp_attention",
    "is_embedding",
)

# With these algorithms the draft of a Gemma 4 target is its MTP assistant; EAGLE3 and others bring their own drafts.
MTP_ALGORITHMS = ("NEXTN", "FROZEN_KV_MTP")


def check(arguments: Mapping[str, Any]) -> None:
    """Check the fields of SGLang's ``ServerArgs`` that decide whether Gemma 4 can be served.

    Raises:
        PreflightError: the model or assistant is missing or does not fit, or a flag cannot work with Gemma 4.
    """
    model = arguments.get("model_path")
    if not model:
        return
    config = read_config(str(model), "model", arguments.get("revision"), arguments.get("download_dir"))
    if config is None or not is_gemma4(config):
        return
    refuse(_problems(str(model), config, arguments))


def refuse(problems: Iterable[str]) -> None:
    """Raise the first of ``problems`` as PreflightError."""
    for problem in problems:
        raise PreflightError(problem)


def _problems(model: str, config: dict[str, Any], arguments: Mapping[str, Any]) -> Iterator[str]:
    """What cannot work of a Gemma 4 model's arguments."""
    for flag in BACKEND_FLAGS:
        backend = arguments.get(flag)
        if backend is not None and backend not in ATTENTION_BACKENDS:
            yield (
                f"--{flag.replace('_', '-')} {backend} cannot serve Gemma 4; "
                f"use one of {', '.join(ATTENTION_BACKENDS)}, or leave the flag out"
            )
    if arguments.get("enable_pdmux"):
        # model_runner.py:1804 calls the model's forward_split_prefill, which no Gemma 4 class has: the first prefill would end the server.
        yield "--enable-pdmux prefills layer by layer, which SGLang's Gemma 4 cannot; leave the flag out"
    if arguments.get("is_embedding"):
        # No Gemma 4 class has a pooler: the first request, a health check's too, would end the server (LogitsProcessorOutput.embeddings).
        yield "--is-embedding: SGLang's Gemma 4 generates text and pools nothing; leave the flag out, or serve an embedding model"
    if arguments.get("enable_dp_attention"):
        # gemma4_causal.py:323 splits heads over all ranks, the KV pools over those of one replica: the first batch ends the server.
        yield "--enable-dp-attention: SGLang's Gemma 4 has no data-parallel attention; leave the flag out (--dp-size alone: replicas)"
    ratio, one_pool = arguments.get("swa_full_tokens_ratio"), arguments.get("disable_hybrid_swa_memory")
    if ratio is not None and not 0 < float(ratio) <= 1:
        yield (
            f"--swa-full-tokens-ratio {ratio} is not above 0 and at most 1 (sliding-window tokens per full token); "
            "leave the flag out, or give for example 0.15 for a MoE and 0.8 for a dense model"
        )
    if ratio is not None and one_pool:
        yield f"--swa-full-tokens-ratio {ratio} divides the pools that --disable-hybrid-swa-memory makes one; leave one of them out"
    # Before the weights are loaded, pool_checks.check can be made only so far; one pool may be spread over ranks.
    context, tokens = arguments.get("context_length"), arguments.get("max_total_tokens")
    if context is not None and tokens is not None and not one_pool and int(context) > int(tokens):
        yield (
            f"--context-length {context}: one request may have {context} tokens and --max-total-tokens {tokens} are all there are; "
            f"raise that, or lower --context-length to {tokens} or less"
        )
    yield from _assistant_problems(model, config, arguments)


def check_images(two_way: bool, text_only: bool, prefill_backend: str, deterministic: bool, cpu_engine: bool) -> None:
    """Check that the prefill attention backend can mask this model's images.

    Args:
        two_way: image tokens attend in both directions (26B-A4B and 31B), and the checkpoint has a vision tower.
        text_only: the server accepts no images.

    Raises:
        PreflightError: it cannot; image tokens would silently be masked as text.
    """
    if not two_way or text_only:
        return
    if prefill_backend not in IMAGE_BACKENDS and not (cpu_engine and prefill_backend == "intel_amx"):
        raise PreflightError(
            f"attention backend {prefill_backend} masks this model's images as text; add --prefill-attention-backend "
            f"{' or '.join(IMAGE_BACKENDS)}, or --language-model-only where no request has images"
        )
    if deterministic and prefill_backend == "triton":
        raise PreflightError(
            "--enable-deterministic-inference takes a kernel of triton's that cannot mask this model's images; leave the flag out, "
            "or add --language-model-only where no request has images"
        )


def check_cache_type(shared_layers: int, kv_cache_dtype: str, extending: Collection[str], read_by_us: bool = False) -> None:
    """Check that KV-shared layers (E2B, E4B) can read the KV cache in prefill and verify.

    Args:
        shared_layers: how many of the model's layers read the KV of other layers.
        extending: attention backends that prefill or verify.
        read_by_us: the patch kv_formats, under which triton reads the cache through this package's kernels.

    Raises:
        PreflightError: the kernel of the first prefill would not compile (``crash_repro/fp8_shared_kv.py``).
    """
    if shared_layers and kv_cache_dtype in FP8_CACHES and "triton" in extending and not read_by_us:
        raise PreflightError(
            f"--kv-cache-dtype {kv_cache_dtype}: {shared_layers} layers of this model read the KV of other layers, which SGLang's triton "
            "prefill and verify take for unquantised; use --kv-cache-dtype auto"
        )


def _assistant_problems(model: str, config: dict[str, Any], arguments: Mapping[str, Any]) -> Iterator[str]:
    algorithm = arguments.get("speculative_algorithm")
    draft = arguments.get("speculative_draft_model_path")
    eagle = switches.is_on(switches.FORCE_EAGLE)  # then NEXTN is EAGLE; patches/force_eagle.py looks at its draft
    wants_mtp = isinstance(algorithm, str) and algorithm.upper() in (MTP_ALGORITHMS[1:] if eagle else MTP_ALGORITHMS)
    if not draft:
        if wants_mtp:
            yield (
                f"--speculative-algorithm {algorithm} needs Gemma 4's MTP assistant; "
                f"add --speculative-draft-model-path, for example {model.rstrip('/')}-assistant"
            )
        return
    if draft == AUTO:  # without the patch mtp_defaults SGLang looks for a model of that name
        draft = sibling(model)
    assistant = read_config(str(draft), "assistant", arguments.get("speculative_draft_model_revision"), arguments.get("download_dir"))
    if assistant is None or (eagle and not wants_mtp):
        return
    if not is_assistant(assistant):
        if wants_mtp:
            found = ", ".join(assistant.get("architectures") or []) or "of no architecture"
            yield f"{draft} is {found}, not {' or '.join(ASSISTANTS)}; give the assistant that was trained with {model}"
        return
    if mismatches := list(_mismatches(text_geometry(config), assistant)):
        yield f"assistant {draft} does not fit {model}: {'; '.join(mismatches)}; give the assistant that was trained with it"


def _mismatches(target: TextGeometry, assistant: dict[str, Any]) -> Iterator[str]:
    draft = text_geometry(assistant)
    backbone = assistant.get("backbone_hidden_size", 3840 if is_unified(assistant) else 1536)
    if backbone != target.hidden_size:
        yield f"its backbone_hidden_size is {backbone}, the model's hidden_size {target.hidden_size}"
    if draft.vocab_size != target.vocab_size:
        yield f"its vocabulary has {draft.vocab_size} tokens, the model's {target.vocab_size}"
    for layer_type, geometry in draft.layers.items():
        owner = target.layers.get(layer_type)
        if owner is None:
            yield f"it has {layer_type} layers, the model has none whose KV they could read"
        elif owner != geometry:
            yield (
                f"its {layer_type} layers read {geometry.kv_heads} KV heads of {geometry.head_dim}, "
                f"the model's have {owner.kv_heads} of {owner.head_dim}"
            )
        elif target.last_types and layer_type not in target.last_types:  # gemma4_mtp.py:182
            yield f"its {layer_type} layers read the model's last two layers, which are {' and '.join(target.last_types)}"
    if "sliding_attention" in draft.layers and draft.sliding_window > target.sliding_window:
        # The target frees the slots of keys behind its own window, and other requests reuse them.
        yield f"its sliding window is {draft.sliding_window} tokens, the model keeps the KV of {target.sliding_window}"
    centroids = assistant.get("num_centroids")
    if assistant.get("use_ordered_embeddings") and centroids and draft.vocab_size % centroids:  # gemma4_mtp.py:116
        yield f"its {centroids} centroids do not divide its vocabulary of {draft.vocab_size} tokens"

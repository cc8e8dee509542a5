"""Refuses arguments that cannot work before any weight is loaded; the one-line message has the value, the limit and the remedy.

Reads config.json files only; neither torch nor sglang is imported.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from sglang_gemma4.diagnostics import draft_limits, parallel_limits, path_limits, rank_limits, value_limits
from sglang_gemma4.models.config_files import PreflightError, is_gemma4, read_config

# sglang/srt/arg_groups/model_hook.py:646
ATTENTION_BACKENDS = ("triton", "fa4", "trtllm_mha", "aiter", "ascend", "intel_xpu", "intel_amx")
BACKEND_FLAGS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")

# Backends whose prefill can mask images, in SGLang or with this package; intel_amx is also the CPU engine's name.
IMAGE_BACKENDS = ("triton", "fa4")

# With these cache dtypes SGLang's triton prefill gives its kernel keys of another dtype than the queries if a layer reads another's KV.
FP8_CACHES = ("fp8_e4m3", "fp8_e5m2")

# What check() reads of SGLang's ServerArgs.
FIELDS = (
    "model_path",
    "revision",
    *BACKEND_FLAGS,
    "enable_pdmux",
    "is_embedding",
    *value_limits.FIELDS,
    *path_limits.FIELDS,
    *draft_limits.FIELDS,
    *parallel_limits.FIELDS,
    *rank_limits.FIELDS,
)


def check(arguments: Mapping[str, Any], cpu_engine: bool = False) -> None:
    """Check the fields of SGLang's ``ServerArgs`` that decide whether Gemma 4 can be served, on the CPU reference engine or a GPU.

    Raises:
        PreflightError: the model or assistant is missing or does not fit, or a flag cannot work with Gemma 4.
    """
    model = arguments.get("model_path")
    if not model:
        return
    config = read_config(str(model), "model", arguments.get("revision"), arguments.get("download_dir"))
    if config is None or not is_gemma4(config):
        return
    refuse(_problems(str(model), config, arguments, cpu_engine))


def refuse(problems: Iterable[str]) -> None:
    """Raise the first of ``problems`` as PreflightError."""
    for problem in problems:
        raise PreflightError(problem)


def _problems(model: str, config: dict[str, Any], arguments: Mapping[str, Any], cpu_engine: bool) -> Iterator[str]:
    """What cannot work of a Gemma 4 model's arguments, one line each."""
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
    yield from rank_limits.problems(config, arguments)
    yield from parallel_limits.problems(config, arguments)
    yield from value_limits.problems(config, arguments, cpu_engine)
    yield from path_limits.problems(arguments)
    yield from draft_limits.problems(model, config, arguments, cpu_engine)


def check_images(two_way: bool, text_only: bool, prefill_backend: str, deterministic: bool, cpu_engine: bool) -> None:
    """Check that the prefill attention backend can mask this model's images.

    Args:
        two_way: image tokens attend in both directions (26B-A4B and 31B), and the checkpoint has a vision tower.
        text_only: the server accepts no images.

    Raises:
        PreflightError: the backend cannot; image tokens would silently be masked like text.
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

"""The pool with scales by token and head on SGLang's own classes, the flag, the limits: without an engine."""

import argparse
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.diagnostics import kv_format_limits
from sglang_gemma4.kernels.kv_cache.formats import FORMATS, cached_rows, quantise_reference
from sglang_gemma4.memory import kv_formats
from sglang_gemma4.models.config_files import PreflightError

SLOTS, HEADS, DIM, LAYERS = 20, 2, 16, 3
every_format = pytest.mark.parametrize("kind", FORMATS)


def pool(kind: str) -> Any:
    from sglang_gemma4.attention.quantised_pool import PerTokenHeadPool

    return PerTokenHeadPool(SLOTS, 1, FORMATS[kind].stored, HEADS, DIM, LAYERS, "cpu", False)


def write(made: Any, layer: int, slots: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    k, v = torch.randn(len(slots), HEADS, DIM), torch.randn(len(slots), HEADS, DIM)
    made.set_kv_buffer(None, slots, k, v, layer_id_override=layer)
    return k, v


def read(made: Any, layer: int, slots: torch.Tensor) -> list[torch.Tensor]:
    scales = made.get_kv_scale_buffer(layer)
    return [cached_rows(each, slots, own) for each, own in zip(made.get_kv_buffer(layer), scales, strict=True)]


@every_format
def test_what_is_written_is_read(kind: str) -> None:
    made, slots = pool(kind), torch.tensor([3, 0, 9, 20])
    k, _ = write(made, 1, slots)
    found, _ = read(made, 1, slots[[0, 2, 3]])
    levels, scales = quantise_reference(k[[0, 2, 3]], FORMATS[kind].dtype)
    assert torch.equal(found, levels.float() * scales[..., None])
    assert not made.k_scale_buffer[1][0].any(), "slot 0 is left as it is"
    assert not any(each.any() for each in made.k_scale_buffer[0:1] + made.v_scale_buffer[2:3])
    assert made.get_kv_size_bytes() == (LAYERS * (SLOTS + 1) * HEADS * (DIM + 4),) * 2


@every_format
def test_a_retracted_request_s_copy_comes_back_in_other_slots(kind: str) -> None:
    made, slots, others = pool(kind), torch.tensor([3, 4, 9, 11, 2]), torch.tensor([15, 1, 8, 12, 19])
    made.cpu_offloading_chunk_size = 2
    write(made, 2, slots)
    before = read(made, 2, slots)
    copy = made.get_cpu_copy(slots)
    write(made, 2, slots, seed=1)
    made.load_cpu_copy(copy, others)
    assert all(torch.equal(one, other) for one, other in zip(read(made, 2, others), before, strict=True))
    assert not torch.equal(read(made, 2, slots)[0], before[0])


@every_format
def test_moved_slots_keep_their_scales(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In torch, as with SGLANG_NATIVE_MOVE_KV_CACHE; the launch that moves bytes on a card is given the same tensors."""
    made = pool(kind)
    made.use_native_move_kv_cache = True
    slots, others = torch.tensor([3, 4]), torch.tensor([7, 1])
    write(made, 0, slots)
    before = read(made, 0, slots)
    made.move_kv_cache(others, slots)
    assert all(torch.equal(one, other) for one, other in zip(read(made, 0, others), before, strict=True))
    moved = {each.data_ptr() for each in made._slot_move_pointer_buffers()}
    assert {each.data_ptr() for each in made.k_scale_buffer + made.v_scale_buffer} < moved
    assert len(moved) == len(made.data_ptrs) == 4 * LAYERS


@every_format
def test_memory_that_comes_back_holds_zeros_for_scales(kind: str) -> None:
    """A release loses it: both halves; of a pool without scales nothing is asked. Without the KV cache among the tags none was."""
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    both = SWAKVPool.__new__(SWAKVPool)
    both.full_kv_pool, both.swa_kv_pool = pool(kind), pool(kind)
    halves = (both.full_kv_pool, both.swa_kv_pool)
    runners = [("target", SimpleNamespace(token_to_kv_pool=both)), ("draft", SimpleNamespace(token_to_kv_pool=object()))]
    manager = SimpleNamespace(_select_runners=lambda: runners)

    def left(tags: list[str] | None) -> int:
        scales = [each for half in halves for each in half.k_scale_buffer + half.v_scale_buffer]
        for each in scales:
            each.fill_(float("nan"))
        kv_formats.zero_scales(None, manager, SimpleNamespace(tags=tags))
        return sum(bool(each.isnan().any()) for each in scales)

    assert left(None) == left([]) == left(["weights", "kv_cache"]) == 0
    assert left(["weights"]) == 4 * LAYERS


@every_format
def test_what_a_transfer_is_given_has_the_scales(kind: str) -> None:
    """K, its scales, V, its scales: SGLang takes the first half for K."""
    made = pool(kind)
    addresses, lengths, pages = made.get_contiguous_buf_infos()
    buffers = [*made.k_buffer, *made.k_scale_buffer, *made.v_buffer, *made.v_scale_buffer]
    assert addresses == [each.data_ptr() for each in buffers]
    assert lengths == [each.nbytes for each in buffers]
    assert pages == ([HEADS * DIM] * LAYERS + [HEADS * 4] * LAYERS) * 2
    assert {length // page for length, page in zip(lengths, pages, strict=True)} == {SLOTS + 1}, "as many pages in each"


def test_a_layout_that_has_no_place_for_scales_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_USE_HND_KVCACHE", "1")
    with pytest.raises(ValueError, match=r"laid out by slot \(nhd\).* not hnd"):
        pool("int8_per_token_head")


def test_the_command_line_takes_the_formats() -> None:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    kv_formats.offer(None, parser)  # in a server the patch does; twice is once
    kv_formats.offer(None, parser)
    for kind in (*FORMATS, "fp8_e4m3", "auto"):
        assert parser.parse_args(["--model-path", "x", "--kv-cache-dtype", kind]).kv_cache_dtype == kind
    choices = list(next(action.choices or () for action in parser._actions if action.dest == "kv_cache_dtype"))
    assert len(choices) == len(set(choices))


def test_other_types_stay_sglang_s() -> None:
    given: dict[str, Any] = {"model": None, "model_dtype": torch.bfloat16, "is_draft_worker": False}
    seen: list[str] = []
    stock = lambda **said: seen.append(said["server_args_kv_cache_dtype"])  # noqa: E731
    assert kv_formats.resolve(stock, server_args_kv_cache_dtype="int8_per_token_head", **given) == ("int8_per_token_head", torch.int8)
    assert seen == []
    kv_formats.resolve(stock, server_args_kv_cache_dtype="fp8_e4m3", **given)
    assert seen == ["fp8_e4m3"]


GOOD = dict.fromkeys(kv_format_limits.FIELDS) | {
    "kv_cache_dtype": "fp8_per_token_head", "disaggregation_mode": "null", "prefill_backend": "triton", "decode_backend": "triton"
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "around", "said"),
    [
        ({"prefill_backend": "fa4"}, {}, "attention backend fa4 reads no such cache; use --attention-backend triton"),
        ({"speculative_draft_attention_backend": "trtllm_mha"}, {}, "attention backend trtllm_mha"),
        ({"prefill_backend": "intel_amx", "decode_backend": "intel_amx"}, {}, "attention backend intel_amx"),
        (
            {"disaggregation_mode": "decode", "disaggregation_transfer_backend": "mori"},
            {},
            "backend mori was not tried with scales",
        ),
        ({"disaggregation_decode_enable_offload_kvcache": True}, {}, "with --disaggregation-decode-enable-offload-kvcache"),
        ({"disaggregation_decode_retraction_backup": "host_pool"}, {}, "retraction-backup host_pool copies elements"),
        ({"dcp_size": 2}, {}, "--decode-context-parallel-size 2 splits"),
        ({"attn_cp_size": 2}, {}, "--attn-cp-size 2 splits the keys of a request over ranks; use 1"),
        ({"enable_lmcache": True}, {}, "with --enable-lmcache: LMCache copies"),
        ({"enable_deterministic_inference": True}, {}, "with --enable-deterministic-inference: its attention kernel"),
        ({"speculative_draft_kv_cache_dtype": "bf16"}, {}, "--speculative-draft-kv-cache-dtype bf16"),
        ({}, {"gemma4": False}, "is this package's for Gemma 4; use auto"),
        ({}, {"capability": (8, 0)}, "compute capability is 8.0, these elements need 8.9; use --kv-cache-dtype int8_per_token_head"),
        ({}, {"capability": (7, 5)}, "compute capability is 7.5, these elements need 8.9; use --kv-cache-dtype auto"),
        ({}, {"hnd": True}, "SGLANG_USE_HND_KVCACHE"),
        ({}, {"unmasked": True}, "the patch image_masks is needed"),
    ],
)
def test_what_does_not_run_is_named(change: dict[str, Any], around: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"gemma4": True, "cpu_engine": False, "capability": (9, 0), **around}
    with pytest.raises(PreflightError) as error:
        kv_format_limits.check(GOOD | change, **given)
    assert said in str(error.value)
    assert "--kv-cache-dtype fp8_per_token_head" in str(error.value)
    kv_format_limits.check(GOOD | change | {"kv_cache_dtype": "auto"}, **given)


@pytest.mark.parametrize("name", kv_format_limits.FLAGS)
def test_each_flag_that_is_refused_is_named_with_its_reason(name: str) -> None:
    with pytest.raises(PreflightError) as error:
        kv_format_limits.check(GOOD | {name: True}, gemma4=True, cpu_engine=False, capability=(9, 0))
    said = f"with --{name.replace('_', '-')}: {kv_format_limits.FLAGS[name]}; leave one of them out"
    assert said in str(error.value)
    kv_format_limits.check(GOOD | {name: False}, gemma4=True, cpu_engine=False, capability=(9, 0))


def test_every_field_that_is_looked_at_is_an_argument_of_sglang_s() -> None:
    """One of another name would be taken for one that was not given. The flags are its command line's words too."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    assert set(kv_format_limits.FIELDS) <= {action.dest for action in parser._actions}
    words = {word for action in parser._actions for word in action.option_strings}
    assert {f"--{name.replace('_', '-')}" for name in (*kv_format_limits.FLAGS, "attn_cp_size")} <= words
    assert "--decode-context-parallel-size" in words


def test_no_card_before_ampere_takes_levels() -> None:
    """``test_kv_format_cards`` compiles for what comes after."""
    with pytest.raises(PreflightError, match=r"capability is 7\.5, these elements need 8\.0; use --kv-cache-dtype auto"):
        kv_format_limits.check(GOOD | {"kv_cache_dtype": "int8_per_token_head"}, gemma4=True, cpu_engine=False, capability=(7, 5))


def test_what_runs_is_not_refused() -> None:
    kv_format_limits.check(GOOD, gemma4=True, cpu_engine=False, capability=(9, 0))
    ampere = GOOD | {"kv_cache_dtype": "int8_per_token_head"}
    kv_format_limits.check(ampere, gemma4=True, cpu_engine=False, capability=(8, 0))
    kv_format_limits.check(GOOD | {"prefill_backend": "intel_amx"}, gemma4=True, cpu_engine=True, capability=None)


def test_sliding_layers_of_a_batch_with_images_see_as_far_as_these_reach() -> None:
    """What ``image_masks`` has found for the batch goes to the kernel; full layers, batches or backends without images stay causal."""
    from sglang_gemma4.attention.image_masks import ImageAttention, ImageBatch
    from sglang_gemma4.attention.quantised import ReadsLevels

    reach, images = torch.tensor([1, 1], dtype=torch.int32), ImageAttention(lambda: None, "cpu")
    backend: Any = SimpleNamespace(extend_attention_fwd=images)
    assert ReadsLevels._reach(backend, 511) is None
    images.batch = ImageBatch(reach, [0], [2])
    assert ReadsLevels._reach(backend, 511) is reach
    assert ReadsLevels._reach(backend, -1) is None
    assert ReadsLevels._reach(SimpleNamespace(extend_attention_fwd=print), 511) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("mode", "masked"), [("EXTEND", True), ("TARGET_VERIFY", False)])
def test_a_verify_step_sees_no_image_of_the_last_prefill(mode: str, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where our verify kernel declines the kernel for prefills verifies; what is kept of a prefill's images is of other rows."""
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from sglang_gemma4.attention import quantised
    from sglang_gemma4.attention.image_masks import ImageAttention

    seen: list[Any] = []
    monkeypatch.setattr(quantised, "reason_against_few_query", lambda *_, **__: "a test")
    monkeypatch.setattr(quantised, "reason_against_prefill", lambda *_, **__: None)
    monkeypatch.setattr(quantised, "prefill_attention", lambda *_, **given: seen.append(given["reach"]))
    monkeypatch.setattr(KVWriteLoc, "for_batch", lambda *_, **__: SimpleNamespace(loc=torch.arange(4), swa_loc=None))
    reach = torch.zeros(4, dtype=torch.int32)
    images = ImageAttention(print, "cpu")
    images.batch = SimpleNamespace(reach=reach)  # type: ignore[assignment]
    starts = torch.tensor([0, 4], dtype=torch.int32)
    metadata = SimpleNamespace(
        swa_out_cache_loc=None, window_kv_indptr=starts, window_kv_indices=starts, window_kv_offsets=None, max_extend_len=4,
        qo_indptr=starts, custom_mask=None,
    )  # fmt: skip
    backend: Any = type("Backend", (quantised.ReadsLevels,), {})()
    backend.forward_metadata, backend.token_to_kv_pool = metadata, pool(next(iter(FORMATS)))
    backend.extend_attention_fwd, backend.topk, backend.steps = images, 1, 0
    layer = SimpleNamespace(
        layer_id=0, tp_q_head_num=2 * HEADS, qk_head_dim=DIM, v_head_dim=DIM, sliding_window_size=8, scaling=1.0, k_scale=None,
        v_scale=None, logit_cap=0.0, logit_capping_method="tanh", attn_type=None, is_cross_attention=False, xai_temperature_len=-1,
    )  # fmt: skip
    batch = SimpleNamespace(forward_mode=ForwardMode[mode])
    backend.forward_extend(torch.zeros(4, 2 * HEADS * DIM), None, None, layer, batch)
    assert [given is reach for given in seen] == [masked]

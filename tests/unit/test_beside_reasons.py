"""Where prompts go beside running requests by themselves, and which requests count as running."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_gemma4.patching import switches
from sglang_gemma4.speculative import beside_reasons, prompt_chunks
from sglang_gemma4.speculative.admission import Way


def runner(moe: bool = True, device: str = "cuda", graphs: Any = None, cache: torch.dtype = torch.bfloat16, unified: bool = False) -> Any:
    text, translator = SimpleNamespace(enable_moe_block=moe), SimpleNamespace(is_translating=unified)
    kinds = {"dtype": torch.bfloat16, "kv_cache_dtype": cache, "kv_index_translator": translator}
    return SimpleNamespace(model_config=SimpleNamespace(hf_text_config=text), device=device, prefill_cuda_graph_runner=graphs, **kinds)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's resolved arguments of a server whose KV is on the device alone; a test may change them."""
    found = SimpleNamespace(
        enable_hierarchical_cache=False, hicache_storage_backend=None, hicache_host_memory_mode="cache", enable_hisparse=False,
        enable_unified_memory=False, enable_unified_cache_external_linker=False, enable_lmcache=False, enable_flexkv=False,
    )  # fmt: skip
    monkeypatch.setattr(beside_reasons, "get_memory", lambda: found)
    return found


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    for name in (switches.BESIDE, switches.BESIDE_TOKENS, switches.BESIDE_GAP):
        monkeypatch.delenv(name, raising=False)


def test_by_itself_only_where_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert beside_reasons.reason_against_unasked(runner()) is None
    assert "dense model" in str(beside_reasons.reason_against_unasked(runner(moe=False)))
    assert "no GPU" in str(beside_reasons.reason_against_unasked(runner(device="cpu")))
    assert "a quantised KV cache" in str(beside_reasons.reason_against_unasked(runner(cache=torch.int8)))
    assert "--enable-unified-memory" in str(beside_reasons.reason_against_unasked(runner(unified=True)))
    assert "no graphs" in str(beside_reasons.reason_against_ungraphed(runner()))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    assert "no GPU" in str(beside_reasons.reason_against_unasked(runner()))


@pytest.mark.parametrize("name", [switches.BESIDE, switches.BESIDE_TOKENS, switches.BESIDE_GAP])
def test_everywhere_where_the_operator_asks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1" if name == switches.BESIDE else "3")
    assert beside_reasons.reason_against_unasked(runner(moe=False, device="cpu")) is None
    assert beside_reasons.reason_against_unasked(runner(cache=torch.int8)) is None
    assert beside_reasons.reason_against_unasked(runner(unified=True)) is None
    assert beside_reasons.reason_against_ungraphed(runner()) is None


@pytest.mark.parametrize("word", switches.POLICY_WORDS)
def test_a_policy_asks_for_nothing(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(switches.BESIDE_GAP, word)
    assert "dense model" in str(beside_reasons.reason_against_unasked(runner(moe=False)))


def test_over_a_host_cache_only_where_the_operator_asks(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.enable_hierarchical_cache = True
    assert beside_reasons.reason_against_tier() is None
    said = f"--enable-hierarchical-cache, over which it was not measured ({switches.BESIDE}=1 turns it on)"
    assert beside_reasons.reason_against_unasked(runner()) == said
    monkeypatch.setenv(switches.BESIDE, "1")
    assert beside_reasons.reason_against_unasked(runner()) is None


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"hicache_storage_backend": "file"}, "--hicache-storage-backend"),
        ({"hicache_host_memory_mode": "buffer_only"}, "--hicache-host-memory-mode buffer_only"),
        ({"enable_unified_memory": True}, "--enable-unified-memory with --enable-hierarchical-cache"),
        ({"enable_unified_cache_external_linker": True}, "--enable-unified-cache-external-linker"),
        ({"enable_lmcache": True}, "--enable-lmcache"),
        ({"enable_flexkv": True}, "--enable-flexkv"),
        ({"enable_hisparse": True}, "--enable-hisparse"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_other_tiers_are_declined_by_name(given: dict[str, Any], flag: str, memory: Any) -> None:
    vars(memory).update(enable_hierarchical_cache=True, **given)
    assert beside_reasons.reason_against_tier() == f"{flag}: a tier of KV with which no mixed batch was run"


def test_a_storage_backend_may_come_while_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = SimpleNamespace(enable_hicache_storage=False)
    monkeypatch.setattr(beside_reasons, "_reason_against_fixed", lambda _scheduler: None)
    assert beside_reasons.reason_against_server(scheduler) is None
    scheduler.enable_hicache_storage = True
    assert beside_reasons.reason_against_server(scheduler) == "a storage backend of HiCache, with which no mixed batch was run"


def test_no_trial_in_turn_with_a_prefill_that_waits_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not timed, so that trial would not end; what was measured to be faster in turn stays in turn."""
    for way, loads, joins in ((Way.TRIED_IN_TURN, True, True), (Way.TRIED_IN_TURN, False, False), (Way.IN_TURN, True, False)):
        monkeypatch.setattr(prompt_chunks._here, "next", way)
        monkeypatch.setattr(prompt_chunks._here, "owed", False)
        assert prompt_chunks.joins(loads) is joins
        assert prompt_chunks._here.owed is not joins


def request(left: int, finished: bool = False) -> Any:
    return SimpleNamespace(finished=lambda: finished, next_output_finishes_by_length=lambda: left <= 1)


def prefilled(*reqs: Any, scores: bool = False, chunked: Any = None) -> Any:
    return SimpleNamespace(forward_mode=ForwardMode.EXTEND, reqs=list(reqs), chunked_req=chunked, is_prefill_only=scores)


def test_requests_that_one_token_ends_do_not_shorten_the_chunks_of_others() -> None:
    none = SimpleNamespace(reqs=[])
    last = prefilled(*(request(left=1) for _ in range(8)))
    assert prompt_chunks.decoded(none, last) == 0
    assert not prompt_chunks.busy(none, last)
    assert not prompt_chunks.busy(none, prefilled(request(50), scores=True))
    cut = request(50)
    running = SimpleNamespace(reqs=[request(50), request(1), request(50, finished=True)])
    assert prompt_chunks.decoded(running, prefilled(request(9), cut, chunked=cut)) == 2
    assert prompt_chunks.decoded(running, None) == 1


def test_only_requests_that_find_a_place_count_as_waiting() -> None:
    """Sixteen wait, 63 of 64 places are taken: one may join with its own tokens, none where a prompt that was begun has the place."""
    queue = [SimpleNamespace(origin_input_ids=range(100)) for _ in range(16)]
    cut = SimpleNamespace(origin_input_ids=range(5000), prefix_len=4000)
    for chunked, joining, tokens in ((None, 1, 100), (cut, 0, 1000)):
        scheduler = SimpleNamespace(waiting_queue=queue, chunked_req=chunked, max_running_requests=64)
        assert prompt_chunks._joining(scheduler, 63) == joining
        assert prompt_chunks._waiting_tokens(scheduler, joining) == tokens

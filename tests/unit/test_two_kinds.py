"""Rows of two kinds: each part gets its own, and nothing goes out of turn."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

from sglang_gemma4 import plugin
from sglang_gemma4.attention.two_kinds import Part, TwoKinds
from sglang_gemma4.models.schedule import host_loads, joined_batch, joined_forward, whole_graphs
from sglang_gemma4.patching import switches
from sglang_gemma4.speculative import beside_bounds, beside_reasons, prefill_beside


class Scaling:
    """Attention that multiplies the queries."""

    def __init__(self, factor: float, writes: bool) -> None:
        self.factor = self.token_to_kv_pool = factor
        self.writes = writes  # where the batch says; else the result is its own
        self.seen: list[Any] = []
        self.forward_metadata = SimpleNamespace(swa_out_cache_loc=torch.tensor([int(factor)]))

    def forward(self, q: torch.Tensor, k: Any, v: Any, _layer: Any, batch: Any, save: bool) -> torch.Tensor:
        self.seen.append((None if k is None else len(k), None if v is None else len(v), batch.name, save))
        if not self.writes:
            return q * self.factor
        batch._attn_output.copy_((q * self.factor).flatten(1))
        return batch._attn_output


def kinds() -> TwoKinds:
    chunk, verify = SimpleNamespace(name="chunk"), SimpleNamespace(name="verify")
    return TwoKinds([Part(3, chunk, Scaling(2.0, writes=True)), Part(2, verify, Scaling(5.0, writes=False))])


def test_each_part_has_its_rows_batch_and_backend() -> None:
    both, rows = kinds(), torch.ones(5, 2, 4)
    layer, given = SimpleNamespace(tp_q_head_num=2, v_head_dim=4), torch.zeros(5, 8)
    outs = [both.forward(rows, rows, None, layer, SimpleNamespace(_attn_output=out), save_kv_cache=False) for out in (None, given)]
    for out in outs:
        assert out.tolist() == [[2.0] * 8] * 3 + [[5.0] * 8] * 2
    assert outs[1] is given
    assert [part.backend.seen for part in both.parts] == [[(3, None, "chunk", False)] * 2, [(2, None, "verify", False)] * 2]
    assert [part.batch._attn_output for part in both.parts] == [None, None]
    assert both.token_to_kv_pool == 2.0, "what both share is asked of the first"
    assert both.sliding_slots is not None
    assert both.sliding_slots.tolist() == [2, 5]


def test_other_numbers_of_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a forward of 3 \+ 2 rows got a tensor of 6"):
        kinds().split(torch.zeros(6, 1))


def test_window_indices_are_sized_by_what_the_host_knows() -> None:
    def given(*args: Any, **kwargs: Any) -> Any:
        return kwargs.get("window_kv_indices", args[9] if len(args) > 9 else None)

    def call(*others: Any) -> Any:
        return joined_batch.window_buffers(given, torch.zeros(4), None, None, None, 64, *others)

    chunk = SimpleNamespace(forward_mode=ForwardMode.EXTEND, extend_prefix_lens_cpu=[5, 100, 0])
    verify = SimpleNamespace(forward_mode=ForwardMode.TARGET_VERIFY, seq_lens_cpu=None)
    decode = SimpleNamespace(forward_mode=ForwardMode.DECODE, seq_lens_cpu=torch.tensor([3, 70]))
    for batch, held, size in ((chunk, None, 69), (verify, [70, 10], 74), (decode, [1, 1], 67)):
        with joined_batch.keys_before(batch, held):
            assert call("lengths", 3).shape == (size,)
            assert call("lengths", 3, "cpu", None, "a graph's buffer") == "a graph's buffer"
    with joined_batch.keys_before(verify):
        assert call("lengths", 3) is None, "SGLang asks the device"
    assert call("lengths", 3) is None


class Forwards:
    """A runner whose own forward is counted."""

    def __init__(self) -> None:
        self.alone: list[ForwardMode] = []

    def __call__(self, _runner: Any, forward_batch: Any) -> str:
        self.alone.append(forward_batch.forward_mode)
        return "alone"


def test_only_the_decode_step_takes_the_prefill_along(monkeypatch: pytest.MonkeyPatch) -> None:
    own, pair = Forwards(), prefill_beside.Pair(SimpleNamespace(), SimpleNamespace(), lambda _batch: None)
    monkeypatch.setattr(pair, "_joined", lambda _runner, _batch: ("prefill's", "decode's"))
    modes = (ForwardMode.EXTEND, ForwardMode.TARGET_VERIFY, ForwardMode.DECODE, ForwardMode.EXTEND, ForwardMode.EXTEND)
    found = [pair.forward(own, None, SimpleNamespace(forward_mode=mode)) for mode in modes]
    assert found == ["alone", "decode's", "alone", "prefill's", "alone"]


def test_a_forward_that_fails_is_said_and_each_batch_runs_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails(_batch: Any) -> None:
        raise ValueError("no such kernel")

    monkeypatch.setattr(beside_reasons, "given_up", [])
    monkeypatch.setattr(prefill_beside, "get_parallel", lambda: SimpleNamespace(tp_size=1))
    own, pair = Forwards(), prefill_beside.Pair(SimpleNamespace(), SimpleNamespace(), fails)
    modes = [ForwardMode.DECODE, ForwardMode.EXTEND]
    assert [pair.forward(own, None, SimpleNamespace(forward_mode=mode)) for mode in modes] == ["alone", "alone"]
    assert own.alone == modes
    assert "a mixed batch failed" in caplog.text
    assert beside_reasons.reason_against_server(None) == "a mixed batch failed, ValueError: no such kernel"
    monkeypatch.setattr(prefill_beside, "get_parallel", lambda: SimpleNamespace(tp_size=2))
    with pytest.raises(ValueError, match="no such kernel"):
        prefill_beside.Pair(SimpleNamespace(), SimpleNamespace(), fails).forward(
            own, None, SimpleNamespace(forward_mode=ForwardMode.DECODE)
        )


class Counter:
    """SGLang's ``LayerDoneCounter``: which copy is waited for, and the layers that were."""

    def __init__(self) -> None:
        self.num_layers, self.consumer_index, self.waited = 6, 2, list[tuple[int, int]]()

    def set_consumer(self, index: int) -> None:
        self.consumer_index = index

    def wait_until(self, layer: int) -> None:
        self.waited.append((self.consumer_index, layer))


def test_a_joined_forward_waits_for_the_prefill_s_keys_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it fails; afterwards whoever reads keys waits for what he waited before."""
    counter, outcomes = Counter(), iter(["both", ValueError("no such kernel")])
    runner = SimpleNamespace(token_to_kv_pool=SimpleNamespace(layer_transfer_counter=counter))
    prefill = SimpleNamespace(spec_algorithm=SimpleNamespace(is_none=lambda: True), hicache_consumer_index=1)

    def forward(runner: Any, *_: Any) -> Any:
        host_loads.wait_for_all(runner.token_to_kv_pool)
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(ForwardBatch, "init_new", lambda *_args, **_kwargs: None)
    monkeypatch.setattr(whole_graphs, "long_prompts", lambda _batch: False)
    monkeypatch.setattr(joined_forward, "forward", forward)
    pair = prefill_beside.Pair(prefill, SimpleNamespace(reqs=[]), lambda _batch: None)
    assert str(pair._joined(runner, None)) == "both"
    with pytest.raises(ValueError, match="no such kernel"):
        pair._joined(runner, None)
    prefill.hicache_consumer_index = -1
    outcomes = iter(["none to wait for"])
    pair._joined(runner, None)
    assert counter.waited == [(1, 5), (1, 5)]
    assert counter.consumer_index == 2


def test_most_tokens() -> None:
    assert beside_bounds.most_tokens({}) is None
    assert beside_bounds.most_tokens({switches.BESIDE_TOKENS: " 512 "}) == 512
    for wrong in ("0", "-3", "many"):
        with pytest.raises(switches.SwitchError, match=f"{switches.BESIDE_TOKENS}={wrong} is not a positive number of tokens"):
            beside_bounds.most_tokens({switches.BESIDE_TOKENS: wrong})


def test_gap() -> None:
    assert beside_bounds.gap({}) is beside_bounds.BALANCED
    assert beside_bounds.gap({switches.BESIDE_GAP: " 1.5 "}) == beside_bounds.Gap(1.5, 0.0)
    assert beside_bounds.gap({switches.BESIDE_GAP: "50ms"}) == beside_bounds.Gap(2.0, 0.05)
    assert beside_bounds.gap({switches.BESIDE_GAP: "latency"}) == beside_bounds.Gap(2.0, 0.05, 4.0)
    for wrong in ("1", "-3", "nan", "much", "ms", "0ms", "-5ms", "infms", "50s"):
        with pytest.raises(switches.SwitchError, match=f"{switches.BESIDE_GAP}={wrong} is not latency, balanced, throughput, a time"):
            beside_bounds.gap({switches.BESIDE_GAP: wrong})


def test_wrong_bounds_end_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert beside_bounds.problems({switches.BESIDE_GAP: "1.5", switches.BESIDE_TOKENS: "512"}) == []
    monkeypatch.setenv(switches.BESIDE_GAP, "0.5")
    monkeypatch.setenv(switches.BESIDE_TOKENS, "many")
    with pytest.raises(SystemExit, match=r"BESIDE_TOKENS=many is not a positive number(.|\n)*BESIDE_GAP=0.5 is not latency, balanced"):
        plugin.register()

"""A verify step's head that waits: for whom it does, what it gives, and what SGLang's verify is handed."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.logits_processor import LogitsMetadata, LogitsProcessor
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models.gemma4_causal import Gemma4ForCausalLM

from sglang_gemma4.models.layers import draft_head, verify_head
from sglang_gemma4.speculative import verify_tokens
from sglang_gemma4.speculative.verify_penalties import COUNTED

HIDDEN, VOCABULARY, NODES = 32, 96, 4
PARALLEL = SimpleNamespace(enable_dp_lm_head=False, attn_dp_size=1, tp_size=1)


def logits_of(self: Any, hidden_states: torch.Tensor, lm_head: Any, metadata: Any, *_given: Any) -> torch.Tensor:
    """In place of SGLang's: into the buffer, as its own."""
    made = hidden_states @ lm_head.weight.T
    return made if metadata.next_token_logits_buffer is None else metadata.next_token_logits_buffer.copy_(made)


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A target's head, installed."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("sglang.srt.runtime_context.get_parallel", lambda: PARALLEL)
    exact = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
    monkeypatch.setattr("sglang.srt.runtime_context.get_exec", lambda: exact)
    monkeypatch.setattr(LogitsProcessor, "_get_logits", logits_of)
    monkeypatch.setattr(
        "sglang_gemma4.kernels.heads.head_argmax.head_argmax", lambda hidden, weight, **_: ((hidden @ weight.T).argmax(-1), None)
    )
    monkeypatch.setattr(draft_head, "reason_against_device", lambda device: None)
    model: Any = object.__new__(Gemma4ForCausalLM)
    torch.nn.Module.__init__(model)
    processor: Any = object.__new__(LogitsProcessor)
    torch.nn.Module.__init__(processor)
    for name, value in {"vocab_size": VOCABULARY, "logit_scale": None, "rl_on_policy_target": None, "use_fp32_lm_head": False}.items():
        setattr(processor, name, value)
    processor.use_fp32_lm_head_output = False
    model.logits_processor = processor
    heard: list[str] = []
    verify_head.install(model, heard.append, lambda message: None, sharded=False)
    assert heard == []
    yield processor
    verify_head._current.clear()


def lm_head() -> Any:
    torch.manual_seed(0)
    return SimpleNamespace(weight=torch.randn(VOCABULARY, HIDDEN))


def metadata(mode: ForwardMode = ForwardMode.TARGET_VERIFY, buffer: torch.Tensor | None = None) -> Any:
    return LogitsMetadata(forward_mode=mode, next_token_logits_buffer=buffer)


def info(**change: Any) -> Any:
    asked = {"is_all_greedy": True, "acc_additive_penalties": None, "acc_scaling_penalties": None, "logit_bias": None}
    return SimpleNamespace(**{**asked, "has_watermark_candidates": False, **change})


def batch(requests: int = 2, **change: Any) -> Any:
    given = {"has_grammar": False, "return_logprob": False, "sampling_info": info(), "seq_lens": torch.ones(requests)}
    return SimpleNamespace(**{"forward_mode": ForwardMode.DECODE, **given, **change})


def stock_sample(verify_input: Any, batch: Any, logits_output: Any, *_given: Any) -> Any:
    """As much of ``eagle_sample`` as reads the logits."""
    logits = logits_output.next_token_logits
    return logits.shape, WALK(target_predict=logits.argmax(-1).view(len(batch.seq_lens), NODES))


WALK = verify_tokens.with_tokens(lambda *, target_predict: target_predict)


def test_a_verify_step_hands_its_hidden_states_on(head: Any) -> None:
    hidden = torch.randn(2 * NODES, HIDDEN)
    assert head._get_logits(hidden, lm_head(), metadata()) is hidden
    assert verify_head._current == [head]
    assert head.waits(hidden[:4])
    assert not head.waits(torch.zeros(2, VOCABULARY))
    assert not head.waits(None)
    assert list(head.parameters()) == [], "the weight is the embedding's"


@pytest.mark.parametrize("mode", [ForwardMode.DECODE, ForwardMode.EXTEND])
def test_other_steps_give_logits(head: Any, mode: ForwardMode) -> None:
    assert head._get_logits(torch.randn(2, HIDDEN), lm_head(), metadata(mode)).shape == (2, VOCABULARY)


@pytest.mark.parametrize(
    ("hidden", "weight", "said"),
    [
        (torch.zeros(129, HIDDEN), torch.zeros(VOCABULARY, HIDDEN), "verify steps of more than 128 rows keep their logits"),
        (torch.zeros(4, VOCABULARY), torch.zeros(VOCABULARY, VOCABULARY), "as wide as the vocabulary, 96"),
    ],
)
def test_rows_that_do_not_wait_say_why(head: Any, hidden: torch.Tensor, weight: torch.Tensor, said: str) -> None:
    heard: list[str] = []
    head.say = heard.append
    assert head._get_logits(hidden, SimpleNamespace(weight=weight), metadata()).shape == (len(hidden), VOCABULARY)
    assert [said in each for each in heard] == [True]


def test_a_greedy_batch_is_verified_by_tokens(head: Any) -> None:
    hidden, weights = torch.randn(2 * NODES, HIDDEN), lm_head()
    output = SimpleNamespace(next_token_logits=head._get_logits(hidden, weights, metadata()))
    shape, predicted = verify_tokens.sample(stock_sample, None, batch(), output)
    assert shape == (2 * NODES, 1)
    assert torch.equal(predicted, (hidden @ weights.weight.T).argmax(-1).view(2, NODES))
    assert output.next_token_logits is None, "nobody takes the column for logits"
    assert WALK(target_predict=7) == 7, "nothing is put in afterwards"
    assert torch.equal(verify_tokens.largest(hidden), predicted.flatten())
    assert verify_tokens.largest(torch.eye(3, VOCABULARY)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"sampling_info": info(is_all_greedy=False)},
        {"sampling_info": info(acc_additive_penalties=torch.zeros(2))},
        {"sampling_info": info(acc_scaling_penalties=torch.zeros(2))},
        {"sampling_info": info(logit_bias=torch.zeros(2))},
        {"sampling_info": info(has_watermark_candidates=True)},
        {"sampling_info": info(**{COUNTED: object()})},
        {"has_grammar": True},
        {"return_logprob": True},
    ],
)
def test_what_else_is_asked_for_needs_logits(head: Any, change: dict[str, Any]) -> None:
    """They lie where a graph would have left them, and only the rows there are."""
    weights, buffer = lm_head(), torch.full((12, VOCABULARY), 7.0)
    head._get_logits(torch.randn(12, HIDDEN), weights, metadata(buffer=buffer))
    head._get_logits(torch.randn(4, HIDDEN), weights, metadata(buffer=buffer[:4]))
    hidden = torch.randn(2 * NODES, HIDDEN)
    output = SimpleNamespace(next_token_logits=hidden)
    shape, predicted = verify_tokens.sample(stock_sample, None, batch(**change), output)
    assert shape == (2 * NODES, VOCABULARY)
    torch.testing.assert_close(output.next_token_logits, hidden @ weights.weight.T)
    assert output.next_token_logits.data_ptr() == buffer.data_ptr()
    assert (buffer[2 * NODES :] == 7).all()
    assert torch.equal(predicted, output.next_token_logits.argmax(-1).view(2, NODES))


def test_a_step_that_did_not_wait_is_sglang_s(head: Any) -> None:
    logits = torch.randn(2 * NODES, VOCABULARY)
    output = SimpleNamespace(next_token_logits=logits)
    assert verify_tokens.sample(stock_sample, None, batch(), output)[0] == (2 * NODES, VOCABULARY)
    assert output.next_token_logits is logits


def targets(head: Any, patch: pytest.MonkeyPatch, said: str) -> Any:
    """A model with that problem."""
    made: Any = object.__new__(torch.nn.Module if "may change" in said else Gemma4ForCausalLM)
    torch.nn.Module.__init__(made)
    made.logits_processor = head
    if "made by" not in said:
        head.__class__ = LogitsProcessor
    if "NaN" in said:
        patch.setenv("SGLANG_ENABLE_NAN_LOGITS_CHECK", "1")
    if "DP" in said:
        patch.setattr("sglang.srt.runtime_context.get_parallel", lambda: SimpleNamespace(enable_dp_lm_head=True, attn_dp_size=2))
    if "SHARDED" in said:
        patch.setattr(
            "sglang.srt.runtime_context.get_parallel", lambda: SimpleNamespace(enable_dp_lm_head=False, attn_dp_size=1, tp_size=2)
        )
    if "deterministic" in said:
        exact = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=True))
        patch.setattr("sglang.srt.runtime_context.get_exec", lambda: exact)
    return made


@pytest.mark.parametrize(
    "said",
    [
        "look for NaN",
        "SHARDED_HEAD is off",
        "--enable-deterministic-inference",
        "a Module may change its logits",
        "made by a VerifyHead",
        "DP attention",
    ],
)
def test_targets_that_keep_their_head(head: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, heard = targets(head, monkeypatch, said), list[str]()
    before = type(head)
    verify_head.install(model, heard.append, heard.append, sharded=False)
    assert [said in each for each in heard] == [True]
    assert type(head) is before

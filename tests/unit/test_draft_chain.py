"""The draft as a chain against SGLang's tree of width one: the same tensors from the same model."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4 import patching
from sglang_gemma4.speculative import chain, frozen_chain
from sglang_gemma4.speculative.chain import Chain

VOCABULARY, HIDDEN = 97, 8


class Model:
    """A stand-in for the draft's runner: logits and hidden states that depend on the token, the hidden state and the position."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.embedding = torch.randn(VOCABULARY, HIDDEN, generator=generator)
        self.head = torch.randn(HIDDEN, VOCABULARY, generator=generator)
        self.seen: list[tuple[list[int], list[int]]] = []

    def forward(self, batch: Any) -> Any:
        self.seen.append((batch.input_ids.tolist(), batch.positions.tolist()))
        hidden = torch.tanh(self.embedding[batch.input_ids] + batch.spec_info.hidden_states + 0.01 * batch.positions[:, None])
        return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=hidden @ self.head, hidden_states=hidden))


def worker(steps: int, seed: int = 0) -> Any:
    from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPDraftWorker

    made: Any = object.__new__(FrozenKVMTPDraftWorker)
    made.topk, made.speculative_num_steps, made.speculative_num_draft_tokens = 1, steps, steps + 1
    made.draft_attn_backend, made.device = SimpleNamespace(token_to_kv_pool=None), "cpu"
    made._model_runner = Model(seed)
    made._target_kv_pool_view = lambda _: nullcontext()
    return made


def batch(rows: int) -> Any:
    from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPDraftInput

    generator = torch.Generator().manual_seed(rows)
    info = FrozenKVMTPDraftInput()
    info.bonus_tokens = torch.randint(VOCABULARY, (rows,), generator=generator)
    info.hidden_states = torch.randn(rows, HIDDEN, generator=generator)
    lengths = torch.randint(1, 50, (rows,), generator=generator)
    return SimpleNamespace(
        spec_info=info,
        seq_lens=lengths,
        positions=torch.zeros(rows, dtype=torch.int64),
        batch_size=rows,
        needs_forward_metadata_init=lambda: False,
        moe_num_token_non_padded=None,
    )


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_the_chain_is_the_tree_of_width_one(steps: int, rows: int) -> None:
    from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPDraftWorker

    stock, ours = worker(steps), worker(steps)
    expected = FrozenKVMTPDraftWorker.draft_forward(stock, batch(rows))
    found = chain.draft_forward(ours, batch(rows), Chain.make(rows + 2, steps, "cpu"))
    for name, one, other in zip(("parents", "order", "tokens"), found, expected, strict=True):
        assert torch.equal(one, other), name
        assert one.dtype == other.dtype, name
    assert ours.model_runner.seen == stock.model_runner.seen, "every step at the last committed token's position"
    assert len(ours.model_runner.seen) == steps


@pytest.mark.parametrize("on_host", [False, True])
def test_metadata_of_an_eager_draft_asks_nothing_of_the_device(on_host: bool) -> None:
    """Lengths are on a device that has no values to give: SGLang's own sum of them raises."""
    made, given = worker(3), []
    made._frozen_kv_target_view = lambda _: nullcontext()
    made.draft_attn_backend = SimpleNamespace(init_forward_metadata=lambda batch: given.append(batch.seq_lens_sum))
    requests = [SimpleNamespace(kv=SimpleNamespace(kv_allocated_len=slots)) for slots in (40, 23)]
    forward_batch = batch(2)
    forward_batch.seq_lens, forward_batch.seq_lens_cpu = forward_batch.seq_lens.to("meta"), torch.tensor([33, 17]) if on_host else None
    forward_batch.forward_mode = SimpleNamespace(is_idle=lambda: False)
    ready: list[bool] = []
    forward_batch.mark_forward_metadata_ready = lambda: ready.append(True)
    chain.init_metadata(made, forward_batch, requests)
    assert given == [50 if on_host else 63]
    assert ready == [True]
    if not on_host:
        with pytest.raises(RuntimeError, match="meta"):
            made._init_frozen_kv_metadata(forward_batch)


def test_last_accepted_rows() -> None:
    hidden = torch.arange(12).view(12, 1)  # three requests, three steps: four rows each
    found = chain.last_accepted(Chain.make(5, 3, "cpu"), hidden, torch.tensor([1, 4, 2], dtype=torch.int32))
    assert found.view(-1).tolist() == [0, 7, 9]


@pytest.mark.parametrize("overlapped", [True, False])
def test_a_seed_is_stocks_without_what_the_relay_would_only_carry(overlapped: bool) -> None:
    """Through SGLang's relay and back: the draft finds the same tokens and hidden states."""
    from sglang.srt.managers.overlap_utils import RelayPayload

    made, given = worker(3), SimpleNamespace(enable_overlap=overlapped)
    tokens, hidden = torch.tensor([5, 9], dtype=torch.int32), torch.randn(2, HIDDEN)
    expected = vars(made._build_seed_draft_input(tokens, hidden))
    found = chain.seed(made, given, tokens, hidden)
    assert type(found) is type(made._build_seed_draft_input(tokens, hidden))
    stubs = {"topk_p", "topk_index"}
    for name, value in expected.items():
        if isinstance(value, torch.Tensor) and not (overlapped and name in stubs):
            assert torch.equal(getattr(found, name), value), name
            assert getattr(found, name).dtype == value.dtype, name
        elif name not in stubs:
            assert getattr(found, name) == value, name
    payload = RelayPayload.from_draft_input(found)
    assert (payload.topk_p is None) == (payload.topk_index is None) == overlapped


def test_trees_are_left_to_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(patching.declare, "note", lambda patch, message: said.append(f"{patch}: {message}"))
    wide = worker(3)
    wide.topk = 2
    assert frozen_chain.draft_forward(lambda *_: "stock's", wide, batch(2)) == "stock's"
    assert said == ["frozen_chain: --speculative-eagle-topk 2, 4 draft tokens: drafts are trees"]


def test_the_constants_grow_with_the_batch() -> None:
    one = worker(3)
    owner = SimpleNamespace(**vars(one), req_to_token_pool=SimpleNamespace(size=4))
    owner.draft_model_runner = SimpleNamespace(model=SimpleNamespace())
    frozen_chain.make_chain(owner)
    assert getattr(owner.draft_model_runner.model, frozen_chain.TOKENS_ONLY)
    small = frozen_chain.chain_of(one, 2)
    assert frozen_chain.chain_of(one, 1) is small
    assert frozen_chain.chain_of(one, 9).order.shape == (9, 3)


def test_the_last_prompt_row_of_each_request() -> None:
    hidden = torch.arange(9).view(9, 1)
    prefill = SimpleNamespace(extend_lens=[2, 3, 4], batch_size=lambda: 3)
    assert frozen_chain.select_last(lambda *_: None, None, prefill, hidden).view(-1).tolist() == [1, 4, 8]
    pruned = SimpleNamespace(extend_lens=[2, 3, 4], batch_size=lambda: 9)
    assert frozen_chain.select_last(lambda *_: "as they are", None, pruned, hidden) == "as they are"


@pytest.mark.parametrize("rows", [1, 5])
def test_the_centroid_head_gives_stocks_token(rows: int) -> None:
    from sglang.srt.models.gemma4_mtp import Gemma4AssistantForCausalLM

    torch.manual_seed(rows)
    model: Any = object.__new__(Gemma4AssistantForCausalLM)
    torch.nn.Module.__init__(model)
    model.vocab_size, model.hidden_size, model.num_centroids, model.vocab_size_per_centroid = 96, HIDDEN, 12, 8
    model.centroid_intermediate_top_k = 3
    model.centroids, model.lm_head = torch.nn.Linear(HIDDEN, 12, bias=False), torch.nn.Linear(HIDDEN, 96, bias=False)
    model.register_buffer("token_ordering", torch.randperm(96))
    hidden = torch.randn(rows, HIDDEN)
    with torch.no_grad():
        stock = frozen_chain.centroid_head(Gemma4AssistantForCausalLM._apply_centroid_masking, model, hidden)
        assert stock.shape == (rows, 96)
        setattr(model, frozen_chain.TOKENS_ONLY, True)
        ours = frozen_chain.centroid_head(Gemma4AssistantForCausalLM._apply_centroid_masking, model, hidden)
    assert ours.shape == (rows, 1)
    assert chain.largest(ours).tolist() == stock.argmax(-1).tolist()

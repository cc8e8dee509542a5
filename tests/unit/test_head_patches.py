"""When the draft's fused head and the sharded head leave the work to SGLang, and which part of the vocabulary a rank has."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.models import loading
from sglang_gemma4.models.layers import draft_head, sharded_head
from sglang_gemma4.speculative import frozen_chain, workers


def test_the_draft_s_token_needs_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(workers, "decline", lambda patch, message: said.append(message))
    model = SimpleNamespace()
    workers.give_head(SimpleNamespace(draft_model_runner=SimpleNamespace(model=model)))
    assert said == ["the draft needs logits: frozen_chain is off, or drafts are trees"]
    assert vars(model) == {}


def draft_processor(**attributes: Any) -> Any:
    made: Any = object.__new__(draft_head.DraftHead)
    torch.nn.Module.__init__(made)
    given = {"logit_scale": None, "rl_on_policy_target": None, "vocab_size": 96, "sharded": False, **attributes}
    for name, value in given.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("attributes", "head", "said"),
    [
        ({}, {"quant_method": object()}, "not a plain weight"),
        ({}, {"apply_lora": None}, "not a plain weight"),
        ({"logit_scale": -1.0}, {}, "logits are scaled"),
        ({"rl_on_policy_target": "fsdp"}, {}, "on-policy training"),
        ({"sharded": True}, {}, "96 tokens do not divide by 5 ranks"),
        ({}, {}, "Triton does not run on cpu"),
    ],
)
def test_a_head_that_needs_logits_is_named(
    attributes: dict[str, Any], head: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_head, "get_parallel", lambda: SimpleNamespace(tp_group=SimpleNamespace(world_size=5)))
    lm_head, processor = SimpleNamespace(weight=torch.zeros(96, 32), **head), draft_processor(**attributes)
    assert said in str(draft_head.reason_against(processor, torch.zeros(2, 32), lm_head, processor.sharded))


@pytest.mark.parametrize(
    ("hidden", "weight", "said"),
    [
        (torch.zeros(2, 32), torch.zeros(96, 32).half(), "weight is (96, 32) of torch.float16"),
        (torch.zeros(2, 32, dtype=torch.float64), torch.zeros(96, 32, dtype=torch.float64), "weight is (96, 32) of torch.float64"),
        (torch.zeros(1000, 32), torch.zeros(96, 32), "1000 rows; up to"),
        (torch.zeros(2, 16), torch.zeros(96, 32), "do not fit"),
        (torch.zeros(2, 64)[:, ::2], torch.zeros(96, 32), "matrices with contiguous rows"),
    ],
)
def test_rows_that_need_logits_get_them(hidden: torch.Tensor, weight: torch.Tensor, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(draft_head.DraftHead.__mro__[1], "_get_logits", lambda *_: "SGLang's")
    heard: list[str] = []
    processor = draft_processor(say=heard.append)
    assert processor._get_logits(hidden, SimpleNamespace(weight=weight), None) == "SGLang's"
    assert [said in each for each in heard] == [True]


class Assistant:
    """An assistant with a centroid head, reduced to what its token is computed from."""

    centroid_intermediate_top_k = 2

    def __init__(self, centroids: int = 8) -> None:
        self.lm_head = SimpleNamespace(weight=torch.zeros(96, 32))
        self.centroids = torch.nn.Linear(32, centroids)
        self.token_ordering = torch.arange(96)

    def _apply_centroid_masking(self, hidden_states: torch.Tensor) -> str:
        return "the chain's"


@pytest.mark.parametrize(
    ("hidden", "centroids", "interpreted", "said"),
    [
        (torch.zeros(draft_head.CENTROID_ROWS + 1, 32), 8, True, None),
        (torch.zeros(2, 32), 8, False, "Triton does not run on cpu"),
        (torch.zeros(2, 32), 7, True, "2 of 7 centroids over 96 tokens"),
    ],
)
def test_centroids_that_stay_in_the_chain(
    hidden: torch.Tensor, centroids: int, interpreted: bool, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1" if interpreted else "0")
    heard: list[str] = []
    found: Any = draft_head.centroid_token(Assistant(centroids), heard.append, hidden)
    assert found == "the chain's"
    assert [said in each for each in heard if said] == ([True] if said else heard)


@pytest.mark.parametrize("name", ["SGLANG_ENABLE_NAN_LOGITS_CHECK", "SGLANG_ENABLE_ASYNC_ASSERT"])
def test_logits_that_are_to_be_checked_are_computed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(workers, "decline", lambda patch, message: said.append(message))
    monkeypatch.setenv(name, "1")
    model = SimpleNamespace(**{frozen_chain.TOKENS_ONLY: True})
    workers.give_head(SimpleNamespace(draft_model_runner=SimpleNamespace(model=model)))
    assert said == ["SGLang is asked to look for NaN in the draft's logits"]
    assert not hasattr(model, "logits_processor")


@pytest.mark.parametrize(("vocabulary", "ranks"), [(262144, 1), (262144, 8), (96, 3)])
def test_the_ranks_ranges_are_the_vocabulary(vocabulary: int, ranks: int) -> None:
    ranges = [sharded_head.vocabulary_range(vocabulary, rank, ranks) for rank in range(ranks)]
    assert [part.start for part in ranges] == [0, *(part.stop for part in ranges[:-1])]
    assert ranges[-1].stop == vocabulary


def embedding(tokens: int) -> Any:
    from sglang.srt.models.gemma3_causal import Gemma3TextScaledWordEmbedding

    return Gemma3TextScaledWordEmbedding(tokens, 8, 0)


def scored(head: Any, monkeypatch: pytest.MonkeyPatch, **attributes: Any) -> tuple[list[int], list[str]]:
    """Rows of the head that the second of three ranks scores, and what was said."""
    said: list[str] = []
    monkeypatch.setattr(loading, "decline", lambda patch, message: said.append(message))
    monkeypatch.setattr(sharded_head, "get_parallel", lambda: SimpleNamespace(tp_size=3, tp_rank=1))
    given = {"do_tensor_parallel_all_gather": True, "use_attn_tp_group": False, "do_tensor_parallel_all_gather_dp_attn": False}
    processor = SimpleNamespace(**{**given, "vocab_size": 96, **attributes})
    found = loading.score_my_range(lambda _p, _h, lm_head, _b, out: lm_head.weight, processor, None, head)
    return [int((head.weight == row).all(1).nonzero()[0]) for row in found[[0, -1]]], said


def test_a_rank_scores_its_range_as_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scored(embedding(96), monkeypatch) == ([32, 63], [])


@pytest.mark.parametrize(
    ("tokens", "attributes", "said"),
    [
        (97, {"vocab_size": 97}, "97 rows of the head for 97 tokens do not divide by 3 ranks"),
        (99, {}, "99 rows of the head for 96 tokens"),
        (96, {"use_attn_tp_group": True}, "DP attention"),
        (96, {"do_tensor_parallel_all_gather_dp_attn": True}, "DP attention"),
        (96, {"do_tensor_parallel_all_gather": False}, None),
    ],
)
def test_what_stays_whole(tokens: int, attributes: dict[str, Any], said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, heard = scored(embedding(tokens), monkeypatch, **attributes)
    assert rows == [0, tokens - 1]
    assert [said in each for each in heard] == [True] if said else heard == []


def test_a_head_that_sglang_shards_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    head = SimpleNamespace(weight=torch.randn(96, 8))
    assert scored(head, monkeypatch) == ([0, 95], [])

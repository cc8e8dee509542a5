"""What ``--speculative-adaptive`` becomes for an MTP assistant: accepted or refused with a reason, with lengths and a policy."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_gemma4 import speculative
from sglang_gemma4.speculative import mtp_defaults, workers

SHIPPED = Path(speculative.__file__).parent / "adaptive_draft.json"


def arguments(**given: Any) -> Any:
    """A stand-in for ``ServerArgs`` with the fields that are read, none of them in the way."""
    fields = {
        "speculative_algorithm": "FROZEN_KV_MTP",
        "speculative_eagle_topk": 1,
        "speculative_adaptive_config": None,
        "attn_dp_size": 1,
        "ep_join_mode": None,
        "enable_multi_layer_eagle": False,
        "enable_two_batch_overlap": False,
        "enable_pdmux": False,
    }
    return SimpleNamespace(**{**fields, **given})


def reason(**given: Any) -> str | None:
    from sglang.srt.speculative.adaptive_spec_params import adaptive_unsupported_reason

    found: str | None = workers.unsupported_reason(adaptive_unsupported_reason, arguments(**given))
    return found


def test_stock_refuses_and_the_patch_accepts() -> None:
    from sglang.srt.speculative.adaptive_spec_params import adaptive_unsupported_reason

    assert "only EAGLE/EAGLE3 are supported" in str(adaptive_unsupported_reason(arguments()))
    assert reason() is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"speculative_eagle_topk": 2}, "topk=2"),
        ({"attn_dp_size": 2}, "attention DP"),
        ({"enable_two_batch_overlap": True}, "two_batch_overlap"),
        ({"enable_pdmux": True}, "pdmux"),
        ({"speculative_algorithm": "NGRAM"}, "speculative_algorithm=NGRAM"),
    ],
)
def test_every_other_reason_stays(given: dict[str, Any], said: str) -> None:
    assert said in str(reason(**given))


def test_the_worker_v1_has_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_FROZEN_KV_MTP_V2", "0")
    assert reason() == "SGLANG_FROZEN_KV_MTP_V2=0 selects the MTP worker v1, whose draft length is fixed"


def test_the_arguments_stay_as_they_are() -> None:
    given = arguments(_resolved_overrides=[("x", {"speculative_eagle_topk": 1})])
    workers.unsupported_reason(lambda as_eagle: None, given)
    assert given._resolved_overrides == [("x", {"speculative_eagle_topk": 1})]
    assert given.speculative_algorithm == "FROZEN_KV_MTP"


def test_the_shipped_lengths_are_the_default_and_only_for_mtp() -> None:
    given = arguments()
    workers.default_config(given)
    assert given._resolved_overrides[-1][1] == {"speculative_adaptive_config": str(SHIPPED)}
    for other in (arguments(speculative_algorithm="EAGLE"), arguments(speculative_adaptive_config="own.json")):
        workers.default_config(other)
        assert not hasattr(other, "_resolved_overrides")


def test_the_shipped_lengths_include_plain_decoding_and_the_default_steps() -> None:
    from sglang.srt.speculative.adaptive_spec_params import resolve_candidate_steps_from_config

    assert {0, mtp_defaults.STEPS} <= set(resolve_candidate_steps_from_config(str(SHIPPED)))
    for name, entry in json.loads(SHIPPED.read_text()).items():
        assert not name.isdigit() or {0, mtp_defaults.STEPS} <= set(entry["candidate_steps"])


@pytest.mark.parametrize(("lengths", "first"), [([0, 1, 3], 3), ([0, 1, 2], 1), ([2, 4], 4), ([0], 0)])
def test_a_server_starts_with_one_of_the_lengths(lengths: list[int], first: int, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"ema_alpha": 0.1, "1": {"candidate_steps": lengths}}))
    assert mtp_defaults.first_steps({"speculative_adaptive": True, "speculative_adaptive_config": str(path)}) == first
    assert mtp_defaults.first_steps({"speculative_adaptive_config": str(path)}) == mtp_defaults.STEPS


def test_a_policy_of_another_name_is_refused(tmp_path: Path) -> None:
    from sglang_gemma4.speculative import adaptive

    path = tmp_path / "own.json"
    path.write_text(json.dumps({"policy": "slowest", "1": {"candidate_steps": [0, 3]}}))
    with pytest.raises(ValueError, match=r"\"policy\" is 'slowest'; expected 'fastest' or 'accept_length'"):
        adaptive.policy(3, str(path))


def test_the_policy_routes_batches_as_sglang_does(tmp_path: Path) -> None:
    from sglang_gemma4.speculative.adaptive import FastestSteps

    path = tmp_path / "own.json"
    path.write_text(json.dumps({"1": {"candidate_steps": [3]}, "8": {"candidate_steps": [1]}}))
    policy = FastestSteps(3, str(path))
    policy.set_cuda_graph_bs([1, 2, 4, 8])
    assert [policy.get_steps_for_batch(batch) for batch in (1, 4, 5, 8, 9)] == [3, 3, 1, 1, 1]  # 5 is padded to 8
    for batch in (1, 4, 5, 8, 9):
        policy.on_verify_complete([1] * batch, batch)
    assert not policy.length._under_way


def test_the_backend_of_every_length_goes_through_the_method_that_draft_graph_marks() -> None:
    from sglang_gemma4.speculative import adaptive

    class Marks(adaptive.AdaptiveDraftWorker):
        def _init_draft_attn_backend(self) -> Any:
            made = super()._init_draft_attn_backend()
            made.marked = True
            return made

    worker = object.__new__(Marks)
    worker.topk, worker.speculative_num_steps = 1, 3
    worker._model_runner = SimpleNamespace(_get_attention_backend=SimpleNamespace, attn_backend=None, draft_attn_backend=None)
    made = []
    for _ in range(2):
        worker.init_attention_backend()
        made.append(worker.draft_attn_backend)
        assert worker.model_runner.attn_backend is worker.model_runner.draft_attn_backend is made[-1]
    assert made[0] is not made[1]
    assert all(one.marked for one in made)

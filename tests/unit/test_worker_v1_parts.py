"""The synchronous worker's parts: its verify input against SGLang's tree builder, what it refuses, who is given it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_gemma4.patches import load
from sglang_gemma4.patching import switches
from sglang_gemma4.speculative import workers
from sglang_gemma4.speculative.synchronous import PipelineParallelError

TENSORS = ("custom_mask", "positions", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling", "draft_token")


def worker(steps: int) -> Any:
    from sglang_gemma4.speculative.worker_v1 import FrozenKVMTPWorkerV1

    made: Any = object.__new__(FrozenKVMTPWorkerV1)
    made.speculative_num_steps, made.speculative_num_draft_tokens = steps, steps + 1
    return made


@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("lengths", [[7], [1, 40, 3]])
def test_the_verify_input_is_that_of_a_tree_of_width_one(steps: int, lengths: list[int]) -> None:
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
    from sglang.srt.speculative.eagle_utils import build_tree_kernel_efficient, organize_draft_results

    requests = len(lengths)
    chain = torch.randint(900, (requests, steps + 1), generator=torch.Generator().manual_seed(steps))
    batch = SimpleNamespace(seq_lens=torch.tensor(lengths), seq_lens_cpu=torch.tensor(lengths))
    found = worker(steps).chain_to_verify(batch, chain)

    scores = [torch.full((requests, 1, 1), 0.5**step) for step in range(steps)]  # later is less likely
    drafted = [chain[:, step + 1 : step + 2] for step in range(steps)]
    parents = [torch.tensor([[-1, 0]] if step == 0 else [[step]]).repeat(requests, 1) for step in range(steps)]
    tree = build_tree_kernel_efficient(
        chain[:, 0],
        *organize_draft_results(scores, drafted, parents, steps + 1),
        batch.seq_lens,
        sum(lengths),
        1,
        steps,
        steps + 1,
    )
    for name, expected in zip(TENSORS, tree, strict=True):
        actual = getattr(found, name)
        assert torch.equal(actual, expected), name
        assert actual.dtype == expected.dtype, name
    assert (found.topk, found.spec_steps, found.draft_token_num, found.seq_lens_sum) == (1, steps, steps + 1, sum(lengths))
    assert found.capture_hidden_mode == CaptureHiddenMode.FULL
    assert found.is_verify_input()


def test_tensors_of_a_pipeline_stage_are_refused() -> None:
    with pytest.raises(PipelineParallelError, match="--pp-size 1"):
        worker(3).forward_batch_generation(SimpleNamespace(), pp_proxy_tensors={"hidden_states": 1})


def test_it_does_not_start_under_the_overlapped_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_gemma4.speculative import worker_v1

    monkeypatch.setattr(worker_v1, "get_schedule", lambda: SimpleNamespace(disable_overlap_schedule=False))
    with pytest.raises(worker_v1.OverlapError, match="--disable-overlap-schedule"):
        worker_v1.FrozenKVMTPWorkerV1(None, 0, 0, None)


def test_only_the_frozen_algorithm_is_given_it() -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    arguments = SimpleNamespace(enable_multi_layer_eagle=False)
    for name, expected in (("EAGLE", "EAGLEWorkerV2"), ("STANDALONE", "StandaloneWorkerV2"), ("FROZEN_KV_MTP", "FrozenKVMTPWorkerV1")):
        assert workers.choose_worker(SpeculativeAlgorithm.create_worker, SpeculativeAlgorithm[name], arguments).__name__ == expected


def test_a_platforms_own_worker_stays() -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    class Own:
        """What an out-of-tree platform returns."""

    assert workers.choose_worker(lambda *_: Own, SpeculativeAlgorithm.FROZEN_KV_MTP, None) is Own


@pytest.mark.parametrize(
    ("algorithm", "off", "declared"),
    [("FROZEN_KV_MTP", False, True), ("FROZEN_KV_MTP", True, None), ("EAGLE", False, None), (None, False, None)],
)
def test_overlap_is_switched_off_for_the_frozen_algorithm_alone(algorithm: str | None, off: bool, declared: bool | None) -> None:
    """On SGLang's own record of decisions; the algorithm is known only after the wrapped step."""
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(model_path="dummy", disable_overlap_schedule=off)

    def previous(given: Any) -> None:
        from sglang.srt.arg_groups.overrides import declare_resolution

        declare_resolution(given, "previous", speculative_algorithm=algorithm)

    workers.switch_overlap_off(arguments, previous)
    decided: dict[str, Any] = {}
    for _, fields in arguments._resolved_overrides:
        decided |= fields
    assert decided.get("disable_overlap_schedule") is declared


def test_zero_selects_and_one_does_not() -> None:
    from sglang_gemma4 import patching

    for value, wanted in (("", False), ("1", False), ("0", True), ("off", True)):
        assert patching.wanted(load("worker_v1"), {switches.MTP_V2: value}) is wanted
    assert not patching.wanted(load("worker_v1"), {switches.MTP_V2: "0", switches.MASTER: "0"})
    assert "synchronous worker (v1)" in load("worker_v1").does

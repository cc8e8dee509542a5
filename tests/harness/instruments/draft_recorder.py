"""Blocks that DSpark's worker proposes: ``TEST_INSTRUMENTS`` names ``install``, which prints a line of JSON for each request of a step.

On a GPU the tokens come out of the draft's CUDA graph, by a sampler of its own. Here it runs eagerly behind the block, and has to agree.
"""

import importlib
import json
from typing import Any

DRAFTED = "DRAFTED "
"""Before the JSON: tokens of the request's prompt, tokens before the block's first one, and the drafts."""


def install() -> None:
    proposer: Any = importlib.import_module("sglang.srt.speculative.dspark_components.dspark_draft").DraftBlockProposer
    forward, original = proposer._run_forward, proposer.propose
    latest: list[Any] = []

    def run_forward(self: Any, **named: Any) -> Any:
        latest[:] = [forward(self, **named)]
        return latest[0]

    def propose(self: Any, *, batch: Any, **named: Any) -> Any:
        found = original(self, batch=batch, **named)
        tokens = found.draft_block.draft_tokens
        for req, before, drafts in zip(batch.reqs, batch.seq_lens.tolist(), tokens.tolist(), strict=True):
            print(DRAFTED + json.dumps([len(req.origin_input_ids), before, drafts]), flush=True)
        assert tokens.equal(_in_a_graph(self, latest[0], batch)), "the draft graph's sampler has other tokens"
        return found

    proposer._run_forward, proposer.propose = run_forward, propose
    torch: Any = importlib.import_module("torch")
    torch.cuda.is_current_stream_capturing = lambda: False  # the sampler asks, and without a driver that is an error


def _in_a_graph(proposer: Any, forward: Any, batch: Any) -> Any:
    """The tokens [requests, block] of the draft graph's sampler, from the same hidden states."""
    module: Any = importlib.import_module("sglang.srt.speculative.dspark_components.dspark_draft_sampler")
    requests = len(batch.reqs)
    sampler = module.maybe_build_draft_sampler(
        draft_model=proposer.draft_model,
        gamma=proposer.gamma,
        max_bs=requests,
        device="cpu",
        tp_rank=1,
        noise=proposer.noise,
        greedy_draft=False,
        tp_sync=proposer._tp_sync,
    )
    sampler.stage_sampling_params(bs=requests, sampling_info=batch.sampling_info)
    sampler(forward.raw_hidden, forward.draft_block_ids.flatten())
    return sampler.out.view(requests, proposer.gamma)

"""The draft loop of FROZEN_KV_MTP for one candidate a step (topk 1): a chain, not a tree.

Stock runs it as a tree of width one: a softmax over the vocabulary, ``select_top_k_tokens``, and cat, topk, sort and gather at the end. A
chain needs only the largest logit of each step. The returned tensors equal those of the tree; where two logits differ by less than a
softmax can resolve, the larger one is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from sglang_gemma4.speculative import chain_acceptance, unified_pool


@dataclass(frozen=True)
class Chain:
    """Constant tensors, made once and sliced for each batch; rows are requests.

    Attributes:
        parents: ``[requests, steps]`` int64, or ``[requests, 0]`` for one step; the tree builder's parent of each node.
        order: ``[requests, steps]`` int64, the nodes by descending score.
        last_rows: ``[requests]`` int64, the row before each request's first one in a verify batch.
    """

    parents: torch.Tensor
    order: torch.Tensor
    last_rows: torch.Tensor

    @classmethod
    def make(cls, requests: int, steps: int, device: torch.device | str) -> "Chain":
        """For up to ``requests`` requests and ``steps`` draft tokens each."""
        parents = torch.arange(-1, steps - 1, dtype=torch.int64, device=device) if steps > 1 else torch.empty(0, dtype=torch.int64)
        return cls(
            parents=parents.to(device).repeat(requests, 1),
            order=torch.arange(steps, dtype=torch.int64, device=device).repeat(requests, 1),
            last_rows=torch.arange(requests, dtype=torch.int64, device=device) * (steps + 1) - 1,
        )


def largest(logits: torch.Tensor) -> torch.Tensor:
    """``[rows]`` int64: index of each row's largest logit; on CUDA with SGLang's split reduction (several programs per row).

    Tokens from :func:`centroid_tokens`, int64 ``[rows, 1]``, are passed through.
    """
    if logits.dtype == torch.int64:
        return logits.view(-1)
    if logits.is_cuda:
        from sglang.kernels.ops.speculative.topk1 import draft_topk1_argmax_only

        _, index = draft_topk1_argmax_only(logits)
        return index.view(-1)
    return logits.argmax(-1)


def centroid_tokens(model: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """``[rows, 1]`` int64: the token with the largest logit among those of the chosen centroids, for ``hidden_states`` ``[rows, hidden]``.

    Stock's ``_apply_centroid_masking`` scatters the same logits into ``[rows, vocabulary]`` first.
    """
    rows, width = hidden_states.shape
    chosen = model.centroids(hidden_states).topk(model.centroid_intermediate_top_k, dim=-1).indices  # [rows, chosen]
    heads = model.lm_head.weight.view(model.num_centroids, model.vocab_size_per_centroid, width)
    selected = heads[chosen].view(rows, -1, width)  # [rows, chosen · tokens of a centroid, hidden]
    best = largest(torch.bmm(selected, hidden_states.unsqueeze(2)).squeeze(2))  # [rows]
    centroid = chosen.gather(1, (best // model.vocab_size_per_centroid)[:, None])
    place = centroid * model.vocab_size_per_centroid + (best % model.vocab_size_per_centroid)[:, None]
    return model.token_ordering.long()[place]


def draft_forward(worker: Any, forward_batch: Any, chain: Chain) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All steps of a draft. Returns what ``FrozenKVMTPDraftWorker.draft_forward`` does: parents, order, draft tokens ``[requests, steps]``.

    All steps use the position of the last committed token, so it and the view of the target's KV are set once.
    """
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
    from sglang.srt.utils.async_probe import maybe_detect_inf, maybe_detect_nan

    if forward_batch.needs_forward_metadata_init():
        worker._init_frozen_kv_metadata(forward_batch)
    spec_info, steps = forward_batch.spec_info, worker.speculative_num_steps
    token, hidden = spec_info.bonus_tokens, spec_info.hidden_states
    rows = token.shape[0]
    drafted = torch.empty((rows, steps), dtype=torch.int64, device=token.device)
    worker._set_positions(forward_batch)
    with (
        worker._target_kv_pool_view(forward_batch),
        forward_context(ForwardContext(attn_backend=worker.draft_attn_backend), forward_batch=forward_batch),
    ):
        for step in range(steps):
            forward_batch.input_ids, spec_info.hidden_states = token, hidden
            output = worker.draft_model_runner.forward(forward_batch).logits_output
            maybe_detect_nan(output.next_token_logits, f"frozen_kv_mtp_draft step {step}")
            maybe_detect_inf(output.next_token_logits, f"frozen_kv_mtp_draft step {step}")
            token, hidden = largest(output.next_token_logits), output.hidden_states
            drafted[:, step] = token
    return chain.parents[:rows], chain.order[:rows], drafted


def verify_input(worker: Any, batch: Any, parents: torch.Tensor, order: torch.Tensor, drafted: torch.Tensor) -> Any:
    """The verify input of a chain, with its mask in the target backend's buffer: no size depends on the batch's lengths."""
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
    from sglang.srt.speculative.eagle_utils import TreeMaskMode
    from sglang.srt.speculative.eagle_worker_common import build_eagle_verify_input
    from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPVerifyInput

    made = build_eagle_verify_input(
        batch,
        batch.spec_info,
        parents,
        order,
        drafted,
        None,
        target_worker=worker.target_worker,
        topk=1,
        num_steps=worker.speculative_num_steps,
        num_draft_tokens=worker.speculative_num_draft_tokens,
        tree_mask_mode=TreeMaskMode.FULL_MASK,  # as stock's frozen draft; SGLang's default is the platform's, not the backend's
        device=worker.device,
    )
    given = {field.name: getattr(made, field.name) for field in fields(made) if field.init}
    return FrozenKVMTPVerifyInput(**{**given, "capture_hidden_mode": CaptureHiddenMode.FULL})


def init_metadata(worker: Any, forward_batch: Any, requests: Sequence[Any]) -> None:
    """``_init_frozen_kv_metadata`` for a draft outside CUDA graphs, without waiting for the device where the host lacks the lengths.

    Backends size index buffers by the sum of lengths. The number of slots allocated to ``requests``, which the host knows, is an upper
    bound of it (eagle_utils.py:880).
    """
    if forward_batch.seq_lens_cpu is None:
        forward_batch.seq_lens_sum = sum(request.kv.kv_allocated_len for request in requests)
    else:
        forward_batch.seq_lens_sum = int(forward_batch.seq_lens_cpu.sum())
    with worker._frozen_kv_target_view(forward_batch):
        worker.draft_attn_backend.init_forward_metadata(forward_batch)
    forward_batch.mark_forward_metadata_ready()


def draft(worker: Any, batch: Any) -> Any:
    """Draft for a decode batch that is not idle, as ``FrozenKVMTPDraftWorker.draft``, without copies to the host."""
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch

    spec_info = batch.spec_info
    spec_info.capture_hidden_mode = CaptureHiddenMode.LAST
    spec_info.num_tokens_per_req = spec_info.num_tokens_for_logprob_per_req = 1
    spec_info.positions = worker._position_for_batch(batch)
    batch.return_hidden_states = False
    runner = worker.draft_model_runner
    forward_batch = ForwardBatch.init_new(
        batch, runner, return_hidden_states_before_norm=False, kv_loc_plan=unified_pool.read_plan(runner, batch)
    )
    forward_batch.out_cache_loc = None  # a frozen draft writes no KV
    graphs = worker.cuda_graph_runner
    if graphs and graphs.can_run_graph(forward_batch):
        if forward_batch.seq_lens_sum is None:  # no backend of this server reads it then; the runner only adds to it
            forward_batch.seq_lens_sum = 0
        found = graphs.execute(forward_batch)
    else:
        forward_batch.can_run_decode_cuda_graph = False
        init_metadata(worker, forward_batch, batch.reqs)
        found = worker.draft_forward(forward_batch)
    return verify_input(worker, batch, *found)


def last_accepted(chain: Chain, hidden: torch.Tensor, accept_lens: torch.Tensor) -> torch.Tensor:
    """``[requests, hidden]``: each request's last accepted row of a verify batch's ``hidden`` ``[requests · (steps + 1), hidden]``."""
    known = chain_acceptance.last_hidden(accept_lens)
    return known if known is not None else hidden[chain.last_rows[: accept_lens.shape[0]] + accept_lens]


def seed(worker: Any, batch: Any, tokens: torch.Tensor, hidden: torch.Tensor) -> Any:
    """The next draft's input: the last accepted ``tokens`` ``[requests]`` and their ``hidden`` ``[requests, hidden]``.

    As ``_build_seed_draft_input``, which also adds zero tensors for ``filter_batch`` and ``merge_batch`` to slice. Under overlap scheduling
    those slice the relay's rows instead, so the zeros would be filled and copied in each step without being read.
    """
    if not batch.enable_overlap:
        return worker._build_seed_draft_input(tokens, hidden)
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
    from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPDraftInput

    return FrozenKVMTPDraftInput(
        bonus_tokens=tokens.to(torch.int64),
        hidden_states=hidden,
        capture_hidden_mode=CaptureHiddenMode.LAST,
        num_tokens_per_req=1,
        num_tokens_for_logprob_per_req=1,
    )

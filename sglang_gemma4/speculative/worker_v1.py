"""The synchronous worker of FROZEN_KV_MTP: the reference for the overlapped one in tests, and the safe mode for operators.

A decode step is :meth:`FrozenKVMTPWorkerV1.decode`. Loading, pools, the view of the target's KV and the target's verify forward are the
overlapped worker's. The rest is its own and simple: a new ``ForwardBatch`` and new attention metadata for every draft step, no draft CUDA
graph, a chain without the tree builder, row numbers computed on the host. It waits for the device wherever that is simpler.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import accumulate
from typing import Any

import torch
from sglang.srt.layers.moe.utils import speculative_moe_a2a_backend_context, speculative_moe_backend_context
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.runtime_context import get_schedule
from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPVerifyInput
from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPWorkerV2
from sglang.srt.speculative.spec_utils import draft_tp_context

from sglang_gemma4.patching import note
from sglang_gemma4.speculative import unified_pool
from sglang_gemma4.speculative.synchronous import refuse_pipeline_inputs

logger = logging.getLogger(__name__)


class OverlapError(RuntimeError):
    """The synchronous worker was started under the overlapped scheduler loop."""


class FrozenKVMTPWorkerV1(FrozenKVMTPWorkerV2):  # type: ignore[misc]
    """Drafts, verifies and seeds the next draft in sequence, for SGLang's synchronous scheduler loop.

    Raises:
        OverlapError: the scheduler overlaps; it would launch a batch before the previous one is done.
    """

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        if not get_schedule().disable_overlap_schedule:
            raise OverlapError("the MTP worker v1 is synchronous: start the server with --disable-overlap-schedule, or use v2")
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self.plan_stream, self.plan_stream_ctx = None, nullcontext()
        self.is_chain = self.topk == 1 and self.speculative_num_draft_tokens == self.speculative_num_steps + 1
        if not self.is_chain:
            shape = f"--speculative-eagle-topk {self.topk}, {self.speculative_num_draft_tokens} draft tokens"
            note("worker_v1", f"{shape}: drafts are trees, drafted by SGLang's own loop, without its CUDA graph")
        logger.info("sglang-gemma4: MTP worker v1: synchronous, one eager forward of the assistant for each draft token")

    def init_cuda_graphs(self) -> None:
        """Initialise the draft worker without capturing its decode steps. The target's graphs are not affected."""
        with self.draft_side():
            TpModelWorker.init_cuda_graphs(self.draft_worker, capture_decode_cuda_graph=False)

    def forward_batch_generation(self, batch: Any, grammar_barrier: Any = None, pp_proxy_tensors: Any = None) -> Any:
        """One step of the scheduler's loop: a ``ScheduleBatch`` in, a ``GenerationBatchResult`` with the next draft's seed out.

        Raises:
            PipelineParallelError: see :func:`refuse_pipeline_inputs`.
        """
        refuse_pipeline_inputs(pp_proxy_tensors)
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return self.prefill(batch)
        return self.decode(batch, grammar_barrier)

    def prefill(self, batch: Any) -> Any:
        """The target's forward. Each request's last hidden state and first token seed its first draft."""
        result = self.target_worker.forward_batch_generation(batch, capture_hidden_mode=CaptureHiddenMode.FULL)
        result.new_seq_lens = batch.seq_lens
        if batch.forward_mode.is_idle():
            result.next_draft_input = self.draft_worker._idle_seed()
            return result
        hidden = result.logits_output.hidden_states  # [tokens, hidden], or already one row for each request
        if hidden.shape[0] != batch.batch_size():
            hidden = hidden[[end - 1 for end in accumulate(batch.extend_lens)]]
        result.next_draft_input = self.draft_worker._build_seed_draft_input(result.next_token_ids, hidden)
        return result

    def decode(self, batch: Any, grammar_barrier: Any = None) -> Any:
        """Draft, verify, seed."""
        if batch.spec_info is None:
            batch.spec_info = self.draft_worker._idle_seed()
        idle = batch.forward_mode.is_idle()

        with self.draft_side():
            if idle or not self.is_chain:
                verify_input = self.draft_worker.draft(batch)
            else:
                verify_input = self.chain_to_verify(batch, self.draft_chain(batch))

        batch.spec_info = verify_input
        result = self.verify(batch, grammar_barrier=grammar_barrier)

        if idle:
            result.next_draft_input = self.draft_worker._idle_seed()
            return result
        width = self.speculative_num_draft_tokens
        last = [request * width + accepted - 1 for request, accepted in enumerate(result.accept_lens.tolist())]
        bonus, hidden = result.next_draft_input.bonus_tokens, result.logits_output.hidden_states  # [requests], [requests · width, hidden]
        result.next_draft_input = self.draft_worker._build_seed_draft_input(bonus, hidden[last])
        return result

    def draft_chain(self, batch: Any) -> torch.Tensor:
        """``[requests, steps + 1]`` int64: each request's bonus token, then the assistant's greedy token of each step."""
        token, hidden = batch.spec_info.bonus_tokens, batch.spec_info.hidden_states  # [requests], [requests, hidden]
        chain = [token]
        for _ in range(self.speculative_num_steps):
            logits, hidden = self.assistant_forward(batch, token, hidden)
            token = logits.argmax(-1)
            chain.append(token)
        return torch.stack(chain, 1)

    def assistant_forward(self, batch: Any, token: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits ``[requests, vocabulary]`` and hidden states ``[requests, hidden]`` of one eager forward on the target's KV.

        Every step uses the position of the last committed token and attends to all committed keys; no KV is written.
        """
        worker = self.draft_worker
        batch.spec_info = worker._build_seed_draft_input(token, hidden)
        batch.spec_info.positions = worker._position_for_batch(batch)
        batch.seq_lens_sum = int(batch.seq_lens.sum())
        batch.return_hidden_states = False
        runner = worker.draft_model_runner
        forward_batch = ForwardBatch.init_new(
            batch, runner, return_hidden_states_before_norm=False, kv_loc_plan=unified_pool.read_plan(runner, batch)
        )
        forward_batch.input_ids = token
        forward_batch.out_cache_loc = None
        forward_batch.can_run_decode_cuda_graph = False
        worker._set_positions(forward_batch)
        worker._init_frozen_kv_metadata(forward_batch)
        backend = ForwardContext(attn_backend=worker.draft_attn_backend)
        with worker._target_kv_pool_view(forward_batch), forward_context(backend, forward_batch=forward_batch):
            output = worker.draft_model_runner.forward(forward_batch).logits_output
        return output.next_token_logits, output.hidden_states

    def chain_to_verify(self, batch: Any, chain: torch.Tensor) -> Any:
        """The verify input of ``chain`` ``[requests, width]``: every token sees its request's prefix, the tokens before it and itself."""
        (requests, width), device = chain.shape, chain.device
        node = torch.arange(width, device=device)
        itself_and_before = node[:, None] >= node
        lengths = batch.seq_lens.tolist()
        prefixes = [itself_and_before.new_ones(width, length) for length in lengths]
        following = torch.where(node + 1 < width, node + 1, -1)
        return FrozenKVMTPVerifyInput(
            draft_token=chain.flatten(),
            custom_mask=torch.cat([torch.cat([prefix, itself_and_before], 1).flatten() for prefix in prefixes]),
            positions=(batch.seq_lens[:, None] + node).flatten(),
            retrieve_index=torch.arange(requests * width, device=device).view(requests, width),
            retrieve_next_token=following.repeat(requests, 1),
            retrieve_next_sibling=torch.full_like(chain, -1),
            retrieve_cum_len=None,
            spec_steps=self.speculative_num_steps,
            topk=1,
            draft_token_num=width,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            seq_lens_sum=sum(lengths),
            seq_lens_cpu=batch.seq_lens_cpu,
        )

    @contextmanager
    def draft_side(self) -> Iterator[None]:
        """SGLang's groups and MoE settings of the draft model."""
        with draft_tp_context(self.draft_worker.parallel_layout), speculative_moe_backend_context(), speculative_moe_a2a_backend_context():
            yield

"""A verify step of one token: plain decoding inside the MTP worker, without the work that only drafts need.

Stock treats such a step as a tree that has only a root: it builds the tree, runs the kernels that walk it and commit a path, and looks up
the last accepted row. With one token per request the results are constants, made once here (:class:`Rows`); a greedy step is then the
target's forward and the largest logit of each row. Batches that need more go through stock's verify.
"""

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative import eagle_utils, spec_utils
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPVerifyInput
from sglang.srt.utils import async_probe

from sglang_gemma4.speculative import verify_tokens

LOGITS = "verify: target model logits"


@dataclass
class Rows:
    """Constant tensors of plain steps, made once and never written to.

    Attributes:
        index: ``[requests, 1]`` int64, each request's row; the tree's indices, and the accepted ones.
        none: ``[requests, 1]`` int64 of -1: no next token, no sibling.
        accepted: ``[requests]`` int32 of 1 (the bonus token), on the host, where the scheduler reads it.
        visible: the target backend's mask buffer after it was filled with True, or None. A mask of one token has no other value, and
            each draft length has its own backend, so nothing else writes to it.
    """

    index: torch.Tensor
    none: torch.Tensor
    accepted: torch.Tensor
    visible: torch.Tensor | None = None

    @classmethod
    def make(cls, requests: int, device: torch.device | str) -> "Rows":
        """For up to ``requests`` requests."""
        index = torch.arange(requests, dtype=torch.int64, device=device).unsqueeze(1)
        return cls(index, torch.full_like(index, -1), torch.ones(requests, dtype=torch.int32))

    def mask(self, batch: Any, backend: Any) -> torch.Tensor:
        """A mask of True: the backend's buffer if it has one for this many requests, else ``[keys + requests]``, as in stock."""
        requests, own = len(batch.seq_lens), backend.verify_mask
        if own is None or not own.fits(requests):
            keys = batch.seq_lens_sum
            if keys is None:
                keys = requests * backend.max_context_len if batch.seq_lens_cpu is None else int(batch.seq_lens_cpu.sum())
            return torch.ones(keys + requests, dtype=torch.bool, device=self.index.device)
        if self.visible is not own.buffer:
            own.buffer.fill_(True)
            self.visible = own.buffer
        return self.visible


def verify_input(rows: Rows, batch: Any, backend: Any) -> FrozenKVMTPVerifyInput:
    """The verify input with each request's last token only; ``backend`` is the target's attention backend."""
    requests = len(batch.seq_lens)
    return FrozenKVMTPVerifyInput(
        draft_token=batch.spec_info.bonus_tokens,
        custom_mask=rows.mask(batch, backend),
        positions=batch.seq_lens.to(torch.int64),
        retrieve_index=rows.index[:requests],
        retrieve_next_token=rows.none[:requests],
        retrieve_next_sibling=rows.none[:requests],
        retrieve_cum_len=None,
        spec_steps=0,
        topk=1,
        draft_token_num=1,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        seq_lens_sum=None,
        seq_lens_cpu=None,
    )


def is_largest_logit(worker: Any, batch: Any) -> bool:
    """Whether stock's verify of one token would only take the largest logit of each row of this batch.

    False if a request is sampled or its logits are changed (penalties, biases, grammars, watermarks), if log-probabilities are returned,
    if SGLang simulates accepted tokens without real ones, if metadata is planned on a separate stream, and on ROCm, where stock sends the
    first rank's tokens to the others.
    """
    if batch.forward_mode.is_idle() or not verify_tokens.suffice(batch):
        return False
    if spec_utils.SIMULATE_ACC_LEN > 0 and spec_utils.SIMULATE_ACC_TOKEN_MODE != "real-draft-token":
        return False
    watermarks = worker.target_worker.model_runner.watermark_state
    return worker.plan_stream is None and batch.hisparse_coordinator is None and watermarks is None


def verify(worker: Any, batch: Any, rows: Rows) -> GenerationBatchResult:
    """``run_eagle_verify`` for a batch for which :func:`is_largest_logit` is true; tokens are int64, stock's int32."""
    stream = torch.get_device_module(worker.device).current_stream()
    given, requests = batch.spec_info, len(batch.seq_lens)
    # Allocated on the scheduler's stream and read on this one, maybe after the scheduler has released them.
    spec_utils.record_stream_for_v2_verify(batch, None, stream)
    forward_batch, by_graph = eagle_utils.eagle_prepare_for_verify(given, worker.req_to_token_pool, batch, worker.target_worker)
    spec_utils.record_stream_each((batch.input_ids, batch.out_cache_loc), stream)
    output = worker.target_worker.forward_batch_generation(batch=None, forward_batch=forward_batch, is_verify=True)
    logits = output.logits_output.next_token_logits  # [requests, vocabulary]
    async_probe.maybe_detect_nan(logits, LOGITS)
    async_probe.maybe_detect_inf(logits, LOGITS)
    async_probe.sanitize_nan_logits(logits, LOGITS)
    tokens = torch.argmax(logits, dim=-1)
    return GenerationBatchResult(
        logits_output=output.logits_output,
        next_token_ids=tokens,
        can_run_cuda_graph=by_graph,
        speculative_num_draft_tokens=1,
        next_draft_input=EagleDraftInput(bonus_tokens=tokens),
        accept_lens=rows.accepted[:requests],
        accept_index=rows.index[:requests],
        new_seq_lens=batch.seq_lens + 1,
        routed_experts_output=output.routed_experts_output,
        indexer_topk_output=output.indexer_topk_output,
        extra_keep_alive_refs=[forward_batch],
    )


def last_hidden(result: GenerationBatchResult, overlapped: bool) -> torch.Tensor:
    """``[requests, hidden]`` from which the next draft starts: all rows of the step.

    Under overlap scheduling SGLang copies them to its relay right after this step. Otherwise they are kept until the next draft, and the
    replay of another graph may overwrite them, so they are copied here.
    """
    hidden: torch.Tensor = result.logits_output.hidden_states[: len(result.next_draft_input.bonus_tokens)]
    return hidden if overlapped else hidden.clone()

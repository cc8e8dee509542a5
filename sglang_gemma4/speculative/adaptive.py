"""Adaptive draft length for FROZEN_KV_MTP: SGLang's adaptive EAGLE on the frozen draft, with the length chosen by measured speed.

SGLang's ``AdaptiveController`` keeps one runtime state per draft length (attention backends, CUDA graphs) and asks a policy which to use.
SGLang's own policy compares the accept length with fixed thresholds, whatever a step costs on this machine. The policy here,
:class:`FastestSteps`, times the steps and takes the length with the most tokens per second (``draft_length``); of the config file's
batch-size entries it reads only which lengths there are.

A length of 0 is plain decoding: a verify step of one token, on the graphs of that width. The hidden state is still captured, so the next
draft can start from the last token. The frozen draft has no KV of its own that would have to catch up after such a phase, as EAGLE has.
Width 1 runs the backend's verify attention, not its decode attention; losses are bounded against that, not against a server without a
draft.
"""

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang.srt.runtime_context import get_context, get_parallel, get_spec
from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController
from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams
from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPVerifyInput
from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPDraftWorker, FrozenKVMTPWorkerV2

from sglang_gemma4.patching import note
from sglang_gemma4.speculative import chain, plain_step
from sglang_gemma4.speculative.draft_length import DraftLength

logger = logging.getLogger(__name__)

PATCH = "adaptive_draft"
FASTEST, ACCEPT_LENGTH = "fastest", "accept_length"


class FastestSteps(AdaptiveSpeculativeParams):
    """SGLang's policy interface on top of :class:`DraftLength`; candidates and graph sizes are read as SGLang reads them."""

    def __init__(self, initial_steps: int, cfg_path: str | None = None) -> None:
        super().__init__(initial_steps, cfg_path)
        self.length = DraftLength(initial_steps)

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Draft length of the decode step that is launched now; called once per step."""
        return self.length.launch(batch_size, self._route(batch_size).candidate_steps)

    def on_verify_complete(self, num_correct_drafts_per_req: Sequence[int], batch_size: int) -> None:
        """Learn from the oldest step in flight. The length is chosen at the next launch, so no switch is requested here."""
        del batch_size
        if not self.length.arrived(num_correct_drafts_per_req, time.monotonic()):
            note(PATCH, "a verify result did not match the oldest step in flight; the steps in flight were ignored")


def policy(initial_steps: int, path: str | None) -> AdaptiveSpeculativeParams:
    """The policy that the config file names: ``fastest`` (the default), or ``accept_length`` for SGLang's own.

    Raises:
        ValueError: it names another.
    """
    name = json.loads(Path(path).read_text()).get("policy", FASTEST) if path else FASTEST
    if name not in (FASTEST, ACCEPT_LENGTH):
        raise ValueError(f'--speculative-adaptive-config {path}: "policy" is {name!r}; expected {FASTEST!r} or {ACCEPT_LENGTH!r}')
    if name == FASTEST and get_parallel().tp_size > 1:
        note(PATCH, "with --tp-size > 1 each rank would measure its own times; SGLang's choice by accept length is used")
        name = ACCEPT_LENGTH
    return FastestSteps(initial_steps, path) if name == FASTEST else AdaptiveSpeculativeParams(initial_steps, path)


class AdaptiveDraftWorker(FrozenKVMTPDraftWorker):
    """The frozen draft worker with the methods that SGLang's adaptive states call."""

    rows: plain_step.Rows | None = None

    def init_attention_backend(self) -> None:
        """Called while a state is built. Each length needs its own backend: capturing a graph replaces the buffers that others read."""
        self.cuda_graph_runner = None
        if self.speculative_num_steps > 0:
            runner = self.draft_model_runner
            runner.attn_backend = runner._get_attention_backend()
            # At topk 1 this is the same backend; the worker's own method is called because `draft_graph` hooks it.
            self.draft_attn_backend = runner.draft_attn_backend = self._init_draft_attn_backend()

    def _rebuild_topk1_chain_buffers(self) -> None:
        """Does nothing: SGLang calls it at each switch to build what EAGLE's draft reads and the frozen one does not."""

    def draft(self, batch: Any) -> FrozenKVMTPVerifyInput:
        """As stock; with 0 steps the verify input holds the last token only."""
        if self.speculative_num_steps > 0 or batch.forward_mode.is_idle():
            return super().draft(batch)
        return plain_step.verify_input(self.rows_for(len(batch.seq_lens)), batch, self.target_worker.model_runner.attn_backend)

    def _draft_extend_for_decode(self, batch: Any, batch_result: Any) -> None:
        """As stock; after a step without drafts each request has one row, from which the next draft starts."""
        if self.speculative_num_steps > 0 or batch.forward_mode.is_idle():
            super()._draft_extend_for_decode(batch, batch_result)
            return
        hidden = plain_step.last_hidden(batch_result, batch.enable_overlap)
        batch_result.next_draft_input = chain.seed(self, batch, batch_result.next_draft_input.bonus_tokens, hidden)

    def rows_for(self, requests: int) -> plain_step.Rows:
        """The constant tensors of plain steps, for at least ``requests`` requests."""
        if self.rows is None or len(self.rows.index) < requests:
            self.rows = plain_step.Rows.make(max(requests, self.req_to_token_pool.size + 1), self.device)
        return self.rows


class AdaptiveWorker(FrozenKVMTPWorkerV2):
    """The frozen MTP worker with an ``AdaptiveController`` where ``--speculative-adaptive`` asks for one; else as stock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        adaptive = get_spec().speculative_adaptive
        # Stock asserts that this is off, and reads it again only after construction.
        get_context().override("sglang_gemma4.adaptive_draft", speculative_adaptive=False)
        try:
            super().__init__(*args, **kwargs)
        finally:
            get_context().override("sglang_gemma4.adaptive_draft", speculative_adaptive=adaptive)
        if not adaptive:
            return
        chosen = policy(self.speculative_num_steps, get_spec().speculative_adaptive_config)
        self.adaptive_controller = AdaptiveController(self, chosen)
        logger.info("sglang-gemma4: adaptive draft length by %s, steps %s", type(chosen).__name__, chosen.candidate_steps)

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """As stock; tells the policy about prefills, which disturb the timing of decode steps."""
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            self.prefilled()
        return super().forward_batch_generation(batch, *args, **kwargs)

    def prefilled(self) -> None:
        """The time of the next decode step tells nothing about its draft length: a prefill ran before it, or goes through with it."""
        if self.adaptive_controller is not None and isinstance(self.adaptive_controller.params, FastestSteps):
            self.adaptive_controller.params.length.prefill()

    def verify(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """As stock; a greedy batch without drafts skips the verification and takes the largest logit of each row."""
        if self.speculative_num_steps == 0 and plain_step.is_largest_logit(self, batch):
            return plain_step.verify(self, batch, self._draft_worker.rows_for(len(batch.seq_lens)))
        return super().verify(batch, *args, **kwargs)

    def apply_runtime_state(self, state: Any) -> None:
        """Switch to a state; the draft's model runner gets that state's backend too."""
        super().apply_runtime_state(state)
        self._draft_worker.draft_model_runner.attn_backend = state.draft_attn_backend

"""The target's LM head in MTP's verify steps, deferred until it is known whether tokens or logits are needed.

When a graph is captured, nobody knows whether the batches that replay it are greedy. So a verify step returns hidden states in place of
logits, and where they are read (``speculative/verify_tokens.py``), either each row's token is taken in one pass over the head, without
logits in memory, or the logits are computed as usual, into the buffer that the graph would have written.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
from sglang.srt.layers.logits_processor import LogitsMetadata, LogitsProcessor
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_gemma4.kernels.heads.head_argmax import MOST_ROWS
from sglang_gemma4.kernels.heads.narrow_scan import NarrowHead
from sglang_gemma4.models.layers import draft_head

Say = Callable[[str], None]
TOO_MANY_ROWS = f"verify steps of more than {MOST_ROWS} rows keep their logits"


class VerifyHead(LogitsProcessor):  # type: ignore[misc]
    """Becomes the class of a target's logits processor. ``say`` is called with the reason where the head is not deferred.

    Where only tokens are needed the soft-cap is left out: it is monotone (``head_argmax.py`` says where two scores could tie).
    """

    narrow: NarrowHead | None = None
    """An int8 copy of what this rank scores of the head (``narrow_copy.py``)."""
    say_narrow: Say
    """Called with the reason where the copy is not read."""
    say: Say
    tell: Say
    sharded: bool
    buffer: torch.Tensor | None
    """The largest buffer that SGLang passed for logits."""
    told: bool
    compiled: set[int]
    """Padded numbers of rows for which the kernel was run before a capture, so that no request waits for the compiler."""

    def _get_logits(self, hidden_states: torch.Tensor, lm_head: Any, logits_metadata: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not logits_metadata.forward_mode.is_target_verify() or args or kwargs or torch.compiler.is_compiling():
            return super()._get_logits(hidden_states, lm_head, logits_metadata, *args, **kwargs)  # type: ignore[no-any-return]
        rows = hidden_states.shape[0]
        reason = TOO_MANY_ROWS if rows > MOST_ROWS else draft_head.reason_against(self, hidden_states, lm_head, self.sharded)
        if reason is None and hidden_states.shape[1] == self.vocab_size:
            reason = f"hidden states are as wide as the vocabulary, {self.vocab_size}"
        if reason:
            self.say(reason)
            return super()._get_logits(hidden_states, lm_head, logits_metadata)  # type: ignore[no-any-return]
        self.__dict__["head"] = lm_head  # not as a part of this module: its weights have a name already
        found = logits_metadata.next_token_logits_buffer
        if found is not None and (self.buffer is None or found.shape[0] >= self.buffer.shape[0]):
            self.buffer = found
        padded = max(16, triton.next_power_of_2(rows))
        if padded not in self.compiled and hidden_states.is_cuda and not torch.cuda.is_current_stream_capturing():
            self.compiled.add(padded)
            draft_head.tokens(self, hidden_states, lm_head.weight, self.sharded)
        return hidden_states

    def waits(self, logits: torch.Tensor | None) -> bool:
        """Whether these are the hidden states of a verify step, not logits."""
        return logits is not None and "head" in self.__dict__ and logits.shape[-1] == self.__dict__["head"].weight.shape[1]

    def tokens(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """``[rows]`` int64: the token with each row's largest logit."""
        if not self.told:
            self.told = True
            self.tell("greedy verify steps take their tokens without logits in memory")
        return draft_head.tokens(self, hidden_states, self.__dict__["head"].weight, self.sharded)

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """``[rows, vocabulary]`` float32, without the rows of a graph's padding, so perhaps by another kernel than in the graph."""
        rows, buffer = hidden_states.shape[0], self.buffer
        mine = None if buffer is None or buffer.shape[0] < rows else buffer[:rows]
        metadata = LogitsMetadata(forward_mode=ForwardMode.TARGET_VERIFY, next_token_logits_buffer=mine)
        made: torch.Tensor = super()._get_logits(hidden_states, self.__dict__["head"], metadata)
        return made


_current: list[VerifyHead] = []


def current() -> VerifyHead | None:
    """The deferred head of this process's target, or None."""
    return _current[-1] if _current else None


def problem_with(model: Any, sharded: bool = False) -> str | None:
    """Why a target's head is not deferred, or None."""
    from sglang.srt.environ import envs
    from sglang.srt.models.gemma4_causal import Gemma4ForCausalLM
    from sglang.srt.models.gemma4_mm import Gemma4ForConditionalGeneration
    from sglang.srt.runtime_context import get_exec, get_parallel

    if envs.SGLANG_ENABLE_NAN_LOGITS_CHECK.get() or envs.SGLANG_ENABLE_ASYNC_ASSERT.get() or envs.SGLANG_SANITIZE_NAN_LOGITS.get():
        return "SGLang is asked to look for NaN in logits"
    if get_exec().deterministic.enable_deterministic_inference:
        return "--enable-deterministic-inference: a greedy token must not depend on what is asked of its neighbours"
    if type(model) not in (Gemma4ForCausalLM, Gemma4ForConditionalGeneration):
        return f"a {type(model).__name__} may change its logits afterwards"
    if type(model.logits_processor) is not LogitsProcessor:
        return f"its logits are made by a {type(model.logits_processor).__name__}"
    if get_parallel().enable_dp_lm_head or get_parallel().attn_dp_size > 1:
        return "DP attention: rows of other ranks go through the head too"
    if get_parallel().tp_size > 1 and not sharded:
        return "SGLANG_GEMMA4_SHARDED_HEAD is off: each rank would take a token of its own"
    return None


def install(model: Any, say: Say, tell: Say, sharded: bool) -> None:
    """Defer a target's head in verify steps; before any capture. ``sharded``: ranks share the vocabulary."""
    reason = problem_with(model, sharded)
    if reason:
        say(reason)
        return
    head: Any = model.logits_processor
    head.__class__ = VerifyHead
    head.say, head.tell, head.sharded, head.buffer, head.told, head.compiled = say, tell, sharded, None, False, set()
    _current[:] = [head]

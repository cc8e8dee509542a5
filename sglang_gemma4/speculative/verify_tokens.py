"""Verify steps that need tokens only: the whole batch is greedy and nothing changes its logits."""

from typing import Any

import torch

from sglang_gemma4.speculative.verify_penalties import COUNTED


def suffice(batch: Any) -> bool:
    """Whether a batch needs only the largest logit of each row: no sampling, no penalties, biases, grammars or watermarks, no
    log-probabilities."""
    if batch.has_grammar or batch.return_logprob or torch.version.hip is not None:
        return False
    info = batch.sampling_info
    changed = (info.acc_additive_penalties, info.acc_scaling_penalties, info.logit_bias, getattr(info, COUNTED, None))
    return bool(info.is_all_greedy) and not info.has_watermark_candidates and all(change is None for change in changed)

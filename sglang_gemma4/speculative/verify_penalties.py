"""Penalties in MTP's verify step: the counts of SGLang's penalizers, applied at the nodes of the drafts.

SGLang's penalizers count on the host, one token per step. Here every output token is counted once, however many a step adds. Under overlap
scheduling a verify step runs before the host has the tokens of the previous one; it finds them on the device, in a table by request slot
that each verify step writes. How many of them are not counted yet follows from the request's length, so nothing waits.

A retracted request starts again with new penalizers, which stock leaves empty; here they start with the answer so far.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens
from sglang.srt.sampling.penaltylib import (
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPresencePenalizer,
    BatchedRepetitionPenalizer,
)
from sglang.srt.utils.common import is_pin_memory_available

from sglang_gemma4.patching import note
from sglang_gemma4.speculative.node_penalties import Counted, Table, last_run, penalise

TABLES = {
    BatchedFrequencyPenalizer: ("cumulated_frequency_penalties", "frequency_penalties"),
    BatchedPresencePenalizer: ("cumulated_presence_penalties", "presence_penalties"),
    BatchedRepetitionPenalizer: ("cumulated_repetition_penalties", "repetition_penalties"),
}
COUNTED, RUNS, ROWS = "_sglang_gemma4_counted", "_sglang_gemma4_runs", "_sglang_gemma4_rows"


def is_ours(batch: Any) -> bool:
    """Whether the batch's drafts are chains that EAGLE's verify checks, or blocks of DFlash or DSpark."""
    if batch.spec_algorithm.is_dflash_family():
        return True
    if not batch.spec_algorithm.is_eagle():
        return False
    topk = get_spec().speculative_eagle_topk
    if topk != 1:
        note("verify_penalties", f"--speculative-eagle-topk {topk}: drafts are trees; penalties and min_new_tokens count as in stock")
    return bool(topk == 1)


def is_penalised(sampling: Any) -> bool:
    """Whether a request uses any penalizer."""
    return bool(
        sampling.frequency_penalty != 0 or sampling.presence_penalty != 0 or sampling.repetition_penalty != 1 or sampling.min_new_tokens > 0
    )


def after_penalizers(_result: None, orchestrator: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``BatchedPenalizerOrchestrator.__init__``. Scaling comes last, as in SGLang's sums; elsewhere stock has a set's order."""
    orchestrator.penalizers = dict(sorted(orchestrator.penalizers.items(), key=lambda item: item[1].is_multiplicative))
    if orchestrator.is_required and is_ours(orchestrator.batch):
        begin(orchestrator, orchestrator.batch)


def count_accepted(original: Callable[[Any], None], batch: Any) -> None:
    """Around ``cumulate_penalty_output_tokens``, which is called only if a request of the batch has penalties."""
    if is_ours(batch):
        count(batch.sampling_info.penalizer_orchestrator, batch.reqs)
    else:
        original(batch)


def copy_for_forward(original: Callable[[Any], Any], info: Any) -> Any:
    """Around ``SamplingBatchInfo.copy_for_forward``: a verify step gets the counts for its nodes in place of SGLang's summed penalties."""
    orchestrator = info.penalizer_orchestrator
    if not orchestrator.is_required or not orchestrator.batch.forward_mode.is_decode() or not is_ours(orchestrator.batch):
        return original(info)
    forward = dataclasses.replace(info, penalizer_orchestrator=None, acc_additive_penalties=None, acc_scaling_penalties=None)
    batch = orchestrator.batch
    setattr(forward, COUNTED, counted(orchestrator, batch.reqs))
    setattr(forward, ROWS, batch.req_pool_indices if batch.enable_overlap else None)
    return forward


def begin(orchestrator: Any, batch: Any) -> None:
    """Let new penalizers count the output tokens that their requests already have: none, or those from before a retraction."""
    for req in batch.reqs:
        setattr(req, COUNTED, 0)
    count(orchestrator, batch.reqs)


def count(orchestrator: Any, reqs: Sequence[Any]) -> None:
    """Count the output tokens that are not counted yet. Tables are replaced, not changed: a forward may be reading them."""
    rows: list[int] = []
    tokens: list[int] = []
    for row, req in enumerate(reqs):
        if is_penalised(req.sampling_params):
            new = req.output_ids[getattr(req, COUNTED) :]
            rows += [row] * len(new)
            tokens += new
            setattr(req, COUNTED, len(req.output_ids))
    if not tokens:
        return
    row, token = to_device([rows, tokens], orchestrator.device)
    for kind, penalizer in orchestrator.penalizers.items():
        if not penalizer.is_prepared():
            continue
        if kind is BatchedMinNewTokensPenalizer:
            ones = torch.ones_like(row, dtype=torch.int32)
            penalizer.len_output_tokens = penalizer.len_output_tokens.index_put((row, torch.zeros_like(row)), ones, accumulate=True)
        else:
            cumulated, each = TABLES[kind]
            costs = getattr(penalizer, each)[row, 0]
            often = kind is BatchedFrequencyPenalizer
            setattr(penalizer, cumulated, getattr(penalizer, cumulated).index_put((row, token), costs, accumulate=often))


def counted(orchestrator: Any, reqs: Sequence[Any]) -> Counted:
    """The penalizers' state as :class:`Counted`."""
    tables: dict[Any, Table] = {}
    for kind, (cumulated, each) in TABLES.items():
        penalizer = orchestrator.penalizers[kind]
        if penalizer.is_prepared():
            tables[kind] = Table(getattr(penalizer, cumulated), getattr(penalizer, each))
    shortest = orchestrator.penalizers[BatchedMinNewTokensPenalizer]
    prompt, output = to_device(
        [[len(req.origin_input_ids) for req in reqs], [getattr(req, COUNTED, 0) for req in reqs]], orchestrator.device
    )
    return Counted(
        frequency=tables.get(BatchedFrequencyPenalizer),
        presence=tables.get(BatchedPresencePenalizer),
        repetition=tables.get(BatchedRepetitionPenalizer),
        least=shortest.min_new_tokens if shortest.is_prepared() else None,
        ends=shortest.stop_token_penalties if shortest.is_prepared() else None,
        prompt=prompt,
        output=output,
    )


@dataclasses.dataclass(frozen=True)
class Runs:
    """The last accepted tokens of a step's requests: rows of a table by request slot (:func:`runs_of`).

    Under overlap scheduling the next step reads them there, before the host has them.
    """

    table: torch.Tensor
    rows: torch.Tensor

    def keep(self, tokens: torch.Tensor, lengths: torch.Tensor) -> None:
        """Store the accepted ``tokens`` [requests · nodes], of which each request has the first ``lengths`` [requests]."""
        self.table[self.rows] = last_run(tokens.view(len(lengths), -1), lengths, self.table.shape[1])


def penalise_step(verify_input: Any, batch: Any, logits_output: Any) -> Runs | None:
    """Penalise the logits of a step that ``eagle_sample`` will judge; returns where to keep what it accepts, if the next step needs it."""
    counts = getattr(batch.sampling_info, COUNTED, None)
    if counts is None:
        return None
    runs = Runs(runs_of(batch.req_to_token_pool), batch.req_pool_indices) if batch.enable_overlap else None
    chain = verify_input.draft_token.view(len(batch.seq_lens), verify_input.draft_token_num)
    penalise_nodes(logits_output.next_token_logits, chain, batch.seq_lens, counts, runs)
    return runs


def penalise_nodes(logits: torch.Tensor, chain: torch.Tensor, lengths: torch.Tensor, counts: Counted, runs: Runs | None) -> None:
    """Penalise ``logits`` [requests · nodes, vocabulary] in place.

    Args:
        chain: [requests, nodes], the last token of each answer and its drafts.
        lengths: [requests], tokens before ``chain``.
    """
    chain = chain.long()
    earlier = chain[:, :0] if runs is None else runs.table[runs.rows]
    penalise(logits.view(*chain.shape, -1), chain, earlier, lengths, counts)


def runs_of(pool: Any) -> torch.Tensor:
    """[request slots, most accepted tokens - 1]: each slot's last accepted tokens, as from ``last_run``; only forwards access it."""
    if RUNS not in vars(pool):
        longest = max_speculative_num_draft_tokens()
        if longest is None:
            raise RuntimeError("drafts are verified but the number of draft tokens is not set; give --speculative-num-draft-tokens")
        shape = (pool.req_to_token.shape[0], longest - 1)
        setattr(pool, RUNS, torch.zeros(shape, dtype=torch.int64, device=pool.req_to_token.device))
    runs: torch.Tensor = getattr(pool, RUNS)
    return runs


def to_device(numbers: list[list[int]], device: Any) -> torch.Tensor:
    """[lists, length] int64, copied without waiting for the device."""
    return torch.tensor(numbers, dtype=torch.int64, pin_memory=is_pin_memory_available(device)).to(device, non_blocking=True)

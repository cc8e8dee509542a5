"""What an MTP scheduler did, step by step, in its log; and requests that it is made to treat badly.

``TEST_INSTRUMENTS`` names ``watch`` or ``leak``.

After each verify a line ``VERIFY {"rids": […], "accepted": […]}`` tells the batch and its accepted drafts. The rid of a request says what
happens to it:

* ``bad…``: its drafts are replaced by a token that the tiny models never say, so none is accepted;
* ``gate<n>.<name>-…``: let into prefill only when n requests of that gate wait, so that they start at once and, with one seed, run alike;
* ``midchunk…``: aborted when its prompt is prefilled in part;
* ``greedy…``: verified greedily whatever it asked for, where all requests of the batch are so named.
"""

import copy
import importlib
import json
from collections import Counter
from typing import Any

PAD = 0


def watch() -> None:
    """Trace the verifies; all that a rid can ask for."""
    _trace()
    _admission()


def leak() -> None:
    """As ``watch``, and the pool forgets one slot of the second release."""
    watch()
    allocator: Any = importlib.import_module("sglang.srt.mem_cache.allocator.swa").SWATokenToKVPoolAllocator
    original, calls = allocator.free_segment, 0

    def forgetful(self: Any, slots: Any, *, start_pos: int) -> None:
        nonlocal calls
        calls += 1
        original(self, slots[:-1] if calls == 2 else slots, start_pos=start_pos)

    allocator.free_segment = forgetful


def _trace() -> None:
    worker: Any = importlib.import_module("sglang.srt.speculative.eagle_worker_v2").EAGLEWorkerV2
    original = worker.verify

    def verify(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        rids = [req.rid for req in batch.reqs]
        drafts = batch.spec_info.draft_token.view(len(rids), -1)  # [requests, 1 + drafts]
        for row, rid in enumerate(rids):
            if rid.startswith("bad"):
                drafts[row, 1:] = PAD
        if all(rid.startswith("greedy") for rid in rids):
            batch.sampling_info = copy.copy(batch.sampling_info)  # the scheduler puts its own back after the step
            batch.sampling_info.is_all_greedy = True
        result = original(self, batch, *args, **kwargs)
        print("VERIFY", json.dumps({"rids": rids, "accepted": (result.accept_lens - 1).tolist()}), flush=True)
        return result

    worker.verify = verify


def _admission() -> None:
    scheduler: Any = importlib.import_module("sglang.srt.managers.scheduler").Scheduler
    original = scheduler.get_new_batch_prefill
    opened: set[str] = set()

    def gate(rid: str) -> str:
        return rid.partition("-")[0] if rid.startswith("gate") else ""

    def get_new_batch_prefill(self: Any, *args: Any, **kwargs: Any) -> Any:
        grammars = self.grammar_manager
        for req in grammars.get_ready_grammar_requests() if type(grammars).has_waiting_grammars(grammars) else []:
            self._add_request_to_queue(req)  # as the original begins; it finds none that is ready since, so that all stand at the gate
        grammars.has_waiting_grammars = lambda: False
        waiting = Counter(gate(req.rid) for req in self.waiting_queue)
        opened.update(name for name, count in waiting.items() if not name or count >= int(name[4:].partition(".")[0]))
        held = [req for req in self.waiting_queue if gate(req.rid) not in opened]
        if held:
            self.waiting_queue = [req for req in self.waiting_queue if gate(req.rid) in opened]
        chunked = self.chunked_req
        if chunked is not None and chunked.rid.startswith("midchunk") and not chunked.finished():
            print("MIDCHUNK", chunked.rid, "prefilled", chunked.kv.kv_committed_len, flush=True)
            self.abort_request(importlib.import_module("sglang.srt.managers.io_struct").AbortReq(rid=chunked.rid))
        try:
            return original(self, *args, **kwargs)
        finally:
            self.waiting_queue += held
            del grammars.has_waiting_grammars

    scheduler.get_new_batch_prefill = get_new_batch_prefill

"""What a unified pool's pages did, in the log: ``TEST_INSTRUMENTS`` names ``watch``.

``MOVED <pool> <pages>`` where live pages were copied to other places, and in an engine that overlaps ``IN FLIGHT <pool> <slots>`` where a
pool was told how many slots the forward writes that was just launched. ``RETRACTED <by whom>`` where requests are retracted: ``in turn`` or
``beside`` a prefill.
"""

import functools
import importlib
from typing import Any


def watch() -> None:
    """Trace moves, write sets, as the pools of full and of sliding layers are told them, and retractions."""
    owner: Any = importlib.import_module("sglang.srt.mem_cache.allocator.unified_sub_pool").MultiEndedAllocator
    move, told = owner._move_pages, owner.set_inflight_forward

    def moving(self: Any, src_pages: Any, dst_pages: Any) -> None:
        print("MOVED", self.sub_pool_name, len(src_pages), flush=True)
        move(self, src_pages, dst_pages)

    def telling(self: Any, forward_done: Any, slots: Any) -> None:
        print("IN FLIGHT", self.sub_pool_name, len(slots), flush=True)
        told(self, forward_done, slots)

    owner._move_pages, owner.set_inflight_forward = moving, telling
    batch: Any = importlib.import_module("sglang.srt.managers.schedule_batch").ScheduleBatch
    beside: Any = importlib.import_module("sglang_gemma4.speculative.prefill_beside")
    retract, choose, choosing = batch.retract_decode, beside.choose, [False]

    @functools.wraps(retract)  # a hook on it asks for its source
    def retracting(self: Any) -> Any:
        print("RETRACTED", "beside" if choosing[0] else "in turn", flush=True)
        return retract(self)

    def noted(*given: Any) -> Any:
        choosing[0] = True
        try:
            return choose(*given)
        finally:
            choosing[0] = False

    batch.retract_decode, beside.choose = retracting, noted

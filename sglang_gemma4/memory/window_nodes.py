"""The tree nodes of a prompt's last window: a running request takes them back, or stops locking their sliding part.

Both change which request or node owns slots, never a slot or its content. Request rows, the map from full to sliding
slots, CUDA graphs and a forward in flight are not affected. Both are called on the scheduler's thread between two
steps, and neither waits for a device.
"""

from collections.abc import Sequence
from typing import Any

from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

SWA = ComponentType.SWA


def locks_window(req: Any) -> bool:
    """Whether this running request (SGLang's ``Req``) locks a prompt's window besides the window of its own tokens.

    False until its last prefill chunk is in the tree. SGLang inserts the chunk, and sets ``prefix_len`` to its end,
    when it processes the chunk's result (mem_cache/common.py:271). With the overlap scheduler that is one step after
    the request was merged into the running batch.
    """
    lock, kv = req.lock, req.kv
    return (
        lock is not None
        and not lock.swa_released
        and SWA not in lock.receipt.skipped_lock_components
        and (req.decode_batch_idx >= 1 or req.prefix_len == req.extend_end)
        and kv.cache_protected_len > 0
        and kv.holds_kv
        and kv.swa_evict_floor == 0
        and req.beam_group is None
    )


def unlock_window(cache: Any, req: Any) -> None:
    """Make ``req`` lock only the full slots of its prompt, whose sliding slots stay cached and become evictable.

    Its window has passed the prompt.
    """
    held = cache.lock(req.lock.node, skip_lock_components=(SWA,))
    cache.unlock(req.lock)
    req.lock = held


def give_back(cache: Any, req: Any) -> int:
    """Take the nodes of the window of ``req`` out of the tree, up to its prompt's end, and give their slots to ``req``.
    Afterwards ``req`` is as if these tokens had not been inserted yet. They are inserted when it ends, with its answer.
    Sliding slots that its window has passed are freed at once, and from then on as it decodes. Until it ends no other
    request hits these nodes, unless the host has a copy (HiCache). Such a node stays in the tree without device slots,
    and is loaded back from the host for a request that hits it.

    Returns:
        Tokens of the nodes. 0, and nothing changed, if another request or a copy under way reads one of them, the tree
        continues behind them, or the request's window has passed them (:func:`unlock_window` is for that case).
    """
    path = cache.tree_core.collect_path_info([req.lock.node])[0]
    first = _first(path, req.seqlen - 1 - kept(cache))
    if first is None or req.skip_radix_cache_insert or path[-1].path_end != req.kv.cache_protected_len:
        return 0
    if req.kv.get_evicted_seqlen(SWA) > req.kv.cache_protected_len:
        return 0  # its window has passed the part in the tree, and slots freed behind that would be freed again
    nodes, parent = path[first:], path[first].parent_id
    if any(cache.tree_core.get_component_device_value(node.node_id, SWA) is None for node in nodes):
        return 0
    on_host = [cache.tree_core.is_backuped(node.node_id) for node in nodes]
    if sorted(on_host, reverse=True) != on_host or cache.enable_storage:
        return 0  # deleting a node without a copy would orphan the one behind it; storage may be attached while serving
    start, tokens = nodes[0].path_start, path[-1].path_end - nodes[0].path_start
    # Lock the parent first: deleting a node also deletes its childless ancestors that have no lock.
    held = cache.lock(parent, skip_lock_components=(SWA,))
    before = cache.full_protected_size()
    cache.unlock(req.lock)
    if before - cache.full_protected_size() != tokens:  # another request locks one of them
        req.lock = cache.lock(req.lock.node)
        cache.unlock(held)
        return 0
    core = cache.tree_core
    for node, backed in reversed(list(zip(nodes, on_host, strict=True))):
        # With write-back the node would first be copied to the host, though the request keeps it on the device.
        drop = core.is_write_back and not backed
        gone = core.drop_subtree_no_host(node.node_id) if drop else core.evict_device_leaf(node.node_id, core.is_write_back)
        gone.device_frees.clear()  # the slots that the tree would free belong to the request
        gone.cache_actions.clear()
        cache._drain_host_frees(gone.host_frees)
    req.lock, req.last_node = held, parent
    req.kv.cache_protected_len = start
    req.kv.cache_inserted_len = min(req.kv.cache_inserted_len, start)
    req.kv.set_evicted_seqlen(SWA, start)
    cache.evict_sliding_windows(req, req.seqlen - 1)
    return int(tokens)


def kept(cache: Any) -> int:
    """Tokens of a window in whole pages, which SGLang keeps (``mem_cache/common.py:free_swa_out_of_window_slots``)."""
    page = cache.page_size
    return int(-(-max(cache.swa_retain_window, page) // page) * page)


def _first(path: Sequence[Any], begin: int) -> int | None:
    """Index in ``path`` of the node that contains token ``begin``, where a window begins.

    None if a node from there on has a child outside ``path``.
    """
    first = max((place for place, node in enumerate(path) if node.path_start <= begin), default=None)
    if first is None or any(node.num_children != (place < len(path) - 1) for place, node in enumerate(path) if place >= first):
        return None
    return first

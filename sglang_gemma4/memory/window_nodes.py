"""The tree nodes that hold a prompt's last window: a running request takes them back, or stops locking their sliding part.

Both change who owns slots, never a slot or what is written in it: rows, the map from full to sliding slots, CUDA graphs and a forward in
flight see nothing of it. Both are called on the scheduler's thread between two steps, and neither waits for a device.
"""

from collections.abc import Sequence
from typing import Any

from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

SWA = ComponentType.SWA


def locks_window(req: Any) -> bool:
    """Whether this running request (SGLang's ``Req``) locks a prompt's window in the tree beside the window of its own tokens.

    False until its last prefill chunk is in the tree: SGLang puts it there, and sets ``prefix_len`` to its end, as it processes the chunk's
    result (mem_cache/common.py:271), with the overlap scheduler one step after the request was merged into the running batch.
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
    """From now on ``req`` locks the full slots of its prompt only: its window has passed the prompt, which stays cached and evictable."""
    held = cache.lock(req.lock.node, skip_lock_components=(SWA,))
    cache.unlock(req.lock)
    req.lock = held


def give_back(cache: Any, req: Any) -> int:
    """``req`` takes the nodes from the one in which its window begins to the end of its prompt out of the tree, for its own.

    Afterwards it stands as if these tokens had not been put into the tree yet, which they are when it ends, with its answer. Sliding slots
    that its window has passed are freed at once, and from then on as it decodes. Until it ends no other request hits these nodes, unless
    the host has a copy (HiCache): such a node stays in the tree without device slots, and comes back from the host for whoever hits it.

    Returns:
        Tokens of the nodes; 0, and nothing changed, where another request or a copy under way reads one of them, the tree goes on behind
        them, or the request's window has passed them (then :func:`unlock_window` is due).
    """
    path = cache.tree_core.collect_path_info([req.lock.node])[0]
    first = _first(path, req.seqlen - 1 - kept(cache))
    if first is None or req.skip_radix_cache_insert or path[-1].path_end != req.kv.cache_protected_len:
        return 0
    if req.kv.get_evicted_seqlen(SWA) > req.kv.cache_protected_len:
        return 0  # its window has passed the tree's part, and what it freed behind that would be freed again
    nodes, parent = path[first:], path[first].parent_id
    if any(cache.tree_core.get_component_device_value(node.node_id, SWA) is None for node in nodes):
        return 0
    on_host = [cache.tree_core.is_backuped(node.node_id) for node in nodes]
    if sorted(on_host, reverse=True) != on_host or cache.enable_storage:
        return 0  # a node without a copy is deleted, and would leave the one behind it without a parent; storage may come while serving
    start, tokens = nodes[0].path_start, path[-1].path_end - nodes[0].path_start
    # The lock on the parent comes first: a node that is deleted takes childless ancestors that nobody locks with it.
    held = cache.lock(parent, skip_lock_components=(SWA,))
    before = cache.full_protected_size()
    cache.unlock(req.lock)
    if before - cache.full_protected_size() != tokens:  # another request locks one of them
        req.lock = cache.lock(req.lock.node)
        cache.unlock(held)
        return 0
    core = cache.tree_core
    for node, backed in reversed(list(zip(nodes, on_host, strict=True))):
        # Write-back would have it copied to the host first, while the request keeps it on the device.
        drop = core.is_write_back and not backed
        gone = core.drop_subtree_no_host(node.node_id) if drop else core.evict_device_leaf(node.node_id, core.is_write_back)
        gone.device_frees.clear()  # what the tree would free is the request's
        gone.cache_actions.clear()
        cache._drain_host_frees(gone.host_frees)
    req.lock, req.last_node = held, parent
    req.kv.cache_protected_len = start
    req.kv.cache_inserted_len = min(req.kv.cache_inserted_len, start)
    req.kv.set_evicted_seqlen(SWA, start)
    cache.evict_sliding_windows(req, req.seqlen - 1)
    return int(tokens)


def kept(cache: Any) -> int:
    """Tokens of a window in whole pages: as many stay behind the last token (``mem_cache/common.py:free_swa_out_of_window_slots``)."""
    page = cache.page_size
    return int(-(-max(cache.swa_retain_window, page) // page) * page)


def _first(path: Sequence[Any], begin: int) -> int | None:
    """Place in ``path`` of the node in which a window begins at token ``begin``, if each node from there on has the next one only below."""
    first = max((place for place, node in enumerate(path) if node.path_start <= begin), default=None)
    if first is None or any(node.num_children != (place < len(path) - 1) for place, node in enumerate(path) if place >= first):
        return None
    return first

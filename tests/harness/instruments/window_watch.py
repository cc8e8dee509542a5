"""What requests did with their prompts' windows, in the log: ``TEST_INSTRUMENTS`` names ``watch``.

``TAKEN <rid> <tokens> <output tokens so far>`` where a request took nodes out of the tree, ``REFUSED <rid>`` where it could not, and
``UNLOCKED <rid>`` where its window had passed its prompt. ``states``: ``STATE own_window <state> <reason>``
as the server becomes ready.
"""

import importlib
from typing import Any


def watch() -> None:
    """Trace take backs and unlocks."""
    nodes: Any = importlib.import_module("sglang_gemma4.memory.window_nodes")
    give_back, unlock_window = nodes.give_back, nodes.unlock_window

    def giving(cache: Any, req: Any) -> int:
        tokens = int(give_back(cache, req))
        print(f"TAKEN {req.rid} {tokens} {len(req.output_ids)}" if tokens else f"REFUSED {req.rid}", flush=True)
        return tokens

    def unlocking(cache: Any, req: Any) -> None:
        unlock_window(cache, req)
        print("UNLOCKED", req.rid, flush=True)

    nodes.give_back, nodes.unlock_window = giving, unlocking


def states() -> None:
    """Say what ``doctor`` would of the patch."""
    patching: Any = importlib.import_module("sglang_gemma4.patching")
    original = patching.find_idle

    def finding(server: Any) -> None:
        original(server)
        outcome = next(one for one in patching.report() if one.name == "own_window")
        print("STATE own_window", outcome.state, outcome.reason, flush=True)

    patching.find_idle = finding

"""Under speculation min_p is applied, and top_k and top_p are judged as in plain sampling."""

from collections.abc import Callable
from typing import Any

from sglang_gemma4.patching import Entry, Hook, Patch, uses

EAGLE = "sglang.srt.speculative.eagle_utils"


def softmax() -> Callable[..., Any]:
    """The softmax under the name by which ``eagle_sample`` calls it."""
    from sglang.kernels.ops.sampling import softmax as stock

    from sglang_gemma4.speculative import verify_cuts

    return verify_cuts.cut_softmax(stock)


PATCH = Patch(
    switch="SGLANG_GEMMA4_VERIFY_RULES",
    why="Verify does not know min-p, and its top-p judges what top-k left; plain sampling judges both by the whole softmax.",
    evidence="srt/speculative/eagle_utils.py:724-742 · srt/layers/sampler.py:407-412, 435-440, 823-834",
    remove_when="SGLang's verify cuts as its sampler does.",
    uses=(uses.speculation,),
    hooks=(
        Hook(f"{EAGLE}.eagle_sample", "around", "sglang_gemma4.speculative.verify_cuts:verify", "b497c62acadc"),
        Entry(f"{EAGLE}.__dict__", "sampling_softmax", softmax, "a66ce32877cf"),
    ),
)

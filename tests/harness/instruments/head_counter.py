"""Say which heads ran: ``TEST_INSTRUMENTS=head_counter:install``, on several ranks ``head_counter:install_on_ranks``."""

import functools
import importlib
from typing import Any


def install() -> None:
    """One line on the log for the first token that each kernel gave, with the part of the head it read."""
    from sglang_gemma4.kernels.heads import centroid_argmax, head_argmax

    for module, name in ((head_argmax, "head_argmax"), (centroid_argmax, "centroid_argmax")):
        _say(module, name)


def install_on_ranks() -> None:
    """The same over gloo, and how wide the target's logits are on a rank before they are gathered."""
    from sglang.srt.layers.logits_processor import LogitsProcessor

    importlib.import_module("tests.harness.instruments.gloo_ranks").install()
    install()
    original: Any = LogitsProcessor._get_logits

    @functools.wraps(original)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        gatherer = self._logits_gatherer
        if self.do_tensor_parallel_all_gather and not hasattr(self, "told_width"):
            self.told_width = True

            def wide(logits: Any) -> Any:
                print(f"GATHERED logits of {logits.shape[1]} tokens a rank", flush=True)
                return gatherer(logits)

            self._logits_gatherer = wide
        return original(self, *args, **kwargs)

    LogitsProcessor._get_logits = told


def _say(module: Any, name: str) -> None:
    original = getattr(module, name)
    said: list[int] = []

    @functools.wraps(original)
    def told(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if not said:
            said.append(1)
            print(f"TOLD by {name} over {tuple(args[1].shape)} from {kwargs.get('first_token', 0)}", flush=True)
        return found

    setattr(module, name, told)

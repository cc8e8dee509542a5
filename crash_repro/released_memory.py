"""After a release and a resume of memory, and an update of all weights, E2B answers otherwise: two constants are lost. Needs no GPU.

On a card ``torch_memory_saver`` discards what loading the model allocated. Here every tensor that hangs on the model is overwritten where
SGLang pauses that memory, which stands for it; what SGLang itself keeps and brings back (the model's buffers) it keeps here too.
"""

import functools
import importlib
import sys
from typing import Any

import case  # type: ignore[import-not-found]
import engines  # type: ignore[import-not-found]
import shipped  # type: ignore[import-not-found]

TOKENS = 16


def main() -> int:
    """Tokens before and after; the weights loaded again are those the server started with."""
    extra = {"prompts": shipped.questions(2, 8), "model": str(shipped.target())}
    seen = engines.ask(shipped.target(), "released_memory:before_and_after", extra, prepare="released_memory:discard")
    if isinstance(seen, dict):
        print(f"before {seen['before']}\nafter  {seen['after']}")
        seen = "the same tokens" if seen["before"] == seen["after"] else "other tokens"
    return int(case.verdict("the same tokens", seen))


def before_and_after(engine: Any, extra: dict[str, Any]) -> dict[str, Any]:
    """The client: answer, sleep, wake, load the weights, answer."""
    before = ask(engine, extra["prompts"])
    engine.loop.run_until_complete(engine.tokenizer_manager.flush_cache(timeout_s=30.0))
    engine.release_memory_occupation()
    engine.resume_memory_occupation()
    engine.update_weights_from_disk(extra["model"])
    return {"before": before, "after": ask(engine, extra["prompts"])}


def ask(engine: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy tokens."""
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    return [answer["output_ids"] for answer in engine.generate(input_ids=prompts, sampling_params=sampling)]


def discard() -> None:
    """Overwrite a model's tensors where a release pauses the weights' memory."""
    import torch
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager

    manager: Any = SchedulerWeightUpdaterManager
    original = manager.release_memory_occupation

    @functools.wraps(original)
    def release(self: Any, request: Any) -> Any:
        kept, devices = self.memory_saver_adapter, torch.get_device_module
        self.memory_saver_adapter = Discarding(self.tp_worker.model_runner.model)
        torch.get_device_module = lambda *_: torch.cpu  # SGLang waits for a card, which this torch has and the machine has not
        try:
            return original(self, request)
        finally:
            self.memory_saver_adapter, torch.get_device_module = kept, devices

    manager.release_memory_occupation = release
    control_values: Any = importlib.import_module("sglang_gemma4.serving.control_values")  # this saver has no flag
    control_values.CHECKS = {name: check for name, check in control_values.CHECKS.items() if "MemoryOccupation" not in name}


class Discarding:
    """The memory saver of one release."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def pause(self, tag: str) -> None:
        """The bytes of every parameter, buffer and plain tensor of the model are 0xff, NaN where they are numbers of a weight."""
        import torch

        if tag != "weights":
            return
        for module in self.model.modules():
            for value in [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]:
                if isinstance(value, torch.Tensor):
                    value.untyped_storage().fill_(0xFF)


if __name__ == "__main__":
    sys.exit(main())

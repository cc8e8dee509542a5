"""Say how the images of a batch were served: ``TEST_INSTRUMENTS=image_recorder:install``."""

import functools
import importlib
from typing import Any


def install() -> None:
    """A line on the log for the first layer masked, those our prefill kernel took, each call of the tower, each mixed batch."""
    import sglang.srt.models.gemma4_mm as gemma4_mm
    from sglang.srt.models.gemma4_vision import Gemma4VisionTransformer

    from sglang_gemma4.attention.image_masks import ImageAttention
    from sglang_gemma4.attention.prefill import PrefillAttention
    from sglang_gemma4.kernels.attention.prefill_attention import prefill_attention_reference

    def after(owner: Any, name: str, tell: Any) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def told(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if line := tell(self, *args, **kwargs):
                print(line, flush=True)
            return result

        setattr(owner, name, told)

    after(ImageAttention, "__call__", lambda self, *_, **__: "MASKED a layer" if self.masked == 1 else "")
    after(PrefillAttention, "attend", lambda self, *args: "REACHED a layer" if len(args) > 4 and args[4] is not None else "")
    quantised: Any = importlib.import_module("sglang_gemma4.attention.quantised")
    attend = quantised.prefill_attention

    def over_levels(*args: Any, out: Any, longest: Any, reach: Any, checked: bool, **kwargs: Any) -> None:
        attend(*args, out=out, longest=longest, reach=reach, checked=checked, **kwargs)
        if reach is not None:
            whole, causal = (float((prefill_attention_reference(*args, reach=each, **kwargs) - out).abs().max()) for each in (reach, None))
            print(f"LEVELS {whole} from whole images, {causal} from causal attention", flush=True)

    quantised.prefill_attention = over_levels
    after(
        Gemma4VisionTransformer,
        "forward",
        lambda self, inputs_embeds, **_: f"TOWER {inputs_embeds.shape[0]} rows of {inputs_embeds.shape[1]} patches",
    )
    model: Any = gemma4_mm.Gemma4ForConditionalGeneration
    forward = model.forward

    @functools.wraps(forward)
    def served(self: Any, input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if forward_batch.forward_mode.is_extend() and forward_batch.contains_image_inputs():
            rows = list(zip(forward_batch.extend_prefix_lens_cpu, forward_batch.extend_seq_lens_cpu, forward_batch.mm_inputs, strict=True))
            whole = [
                one is not None and any(b >= prefix and e < prefix + count for item in one.mm_items for b, e in item.offsets)
                for prefix, count, one in rows
            ]
            decoding = [prefix > 0 and count == 1 for prefix, count, _ in rows]
            if any(whole) and any(decoding):
                print(f"MIXED batch: images in {whole}, decode rows {decoding}", flush=True)
        return forward(self, input_ids, positions, forward_batch, *args, **kwargs)

    model.forward = served


def slow() -> None:
    """Decode at most 5 tokens a second until a prompt waits for memory, and say that it waits.

    The prompt's image may take seconds to arrive on a busy machine: the request that holds the memory must still be running.
    """
    import time

    from sglang.srt.managers.scheduler import Scheduler

    from sglang_gemma4.serving import image_chunks

    wait, decode = image_chunks._wait, Scheduler.update_running_batch
    waited: list[int] = []

    def told(req: Any, length: int, room: int) -> None:
        print(f"WAITED for {length} tokens of which {room} are free", flush=True)
        waited.append(length)
        wait(req, length, room)

    @functools.wraps(decode)  # a hook that goes here later finds the source that it was written for
    def slowed(self: Any, batch: Any) -> Any:
        if not waited:
            time.sleep(0.2)
        return decode(self, batch)

    image_chunks._wait = told
    scheduler: Any = Scheduler
    scheduler.update_running_batch = slowed

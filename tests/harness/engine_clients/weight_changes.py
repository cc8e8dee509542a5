"""Clients for ``Group.client``: change an engine's weights as a trainer does, then send the group's prompts.

``extra["steps"]`` is a list of ``[name, options]``, each a function below called with the engine; what SGLang answered to each stands in
``meta_info["replies"]`` of every output.
"""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness import nursery
from tests.harness.ports import free_port

Tensors = list[tuple[str, Any]]


def play(engine: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
    """Take the steps, then send the prompts."""
    replies = [STEPS[name](engine, **options) for name, options in group["extra"]["steps"]]
    if not group["prompts"]:
        return [{"token_ids": [], "text": "", "logprobs": [], "meta_info": {"replies": replies}}]
    answers: list[dict[str, Any]] = nursery.send(engine, group)
    for answer in answers:
        answer["meta_info"]["replies"] = replies
    return answers


def wait(engine: Any, request: Any) -> Any:
    """What the tokenizer manager's coroutine gives."""
    return engine.loop.run_until_complete(request)


def tensors_of(path: str) -> Tensors:
    """A checkpoint's tensors by name, in the order of its file."""
    from safetensors.torch import load_file

    return list(load_file(Path(path) / "model.safetensors").items())


def parts(tensors: Tensors, number: int) -> list[Tensors]:
    """Every ``number``-th tensor together, so that what belongs together comes apart."""
    return [tensors[first::number] for first in reversed(range(number))]


def from_disk(engine: Any, path: str) -> list[Any]:
    """``/update_weights_from_disk``; an answer is out before its request has left the batch, and a busy cache is not flushed: wait."""
    wait(engine, engine.tokenizer_manager.flush_cache(timeout_s=30.0))
    return list(engine.update_weights_from_disk(path))[:2]


def from_tensor(engine: Any, path: str, selector: str = "all", buckets: int = 1, begins: bool = False) -> list[Any]:
    """``/update_weights_from_tensor`` within a session, in some calls; ``begins``: what the session's begin answers comes first."""
    from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput
    from sglang.srt.utils import MultiprocessingSerializer

    wait(engine, engine.tokenizer_manager.flush_cache(timeout_s=30.0))
    begun = list(engine.begin_weight_update(selector))
    replies = [begun] if begins else []
    for part in parts(tensors_of(path), buckets):
        payload = [MultiprocessingSerializer.serialize(part)]
        request = UpdateWeightsFromTensorReqInput(serialized_named_tensors=payload, selector=selector)
        replies.append(list(wait(engine, engine.tokenizer_manager.update_weights_from_tensor(request, None))))
    engine.end_weight_update()
    return replies


def broadcast(tensors: Tensors, group: Any) -> None:
    """From rank 0 to all, one after the other."""
    import torch

    for _, tensor in tensors:
        torch.distributed.broadcast(tensor, 0, group=group)


def from_distributed(engine: Any, path: str, selector: str = "all", buckets: int = 1) -> list[Any]:
    """``/update_weights_from_distributed`` over gloo: this process is the trainer, rank 0."""
    import torch
    from sglang.srt.managers.io_struct import UpdateWeightsFromDistributedReqInput
    from sglang.srt.utils import init_custom_process_group

    wait(engine, engine.tokenizer_manager.flush_cache(timeout_s=30.0))
    made: list[Any] = []
    port = free_port()

    def join() -> None:
        made.append(init_custom_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", world_size=2, rank=0, group_name="trainer"))

    joining = threading.Thread(target=join)
    joining.start()
    replies = [list(engine.init_weights_update_group("127.0.0.1", port, 1, 2, "trainer", "gloo"))]
    joining.join()
    engine.begin_weight_update(selector)
    for part in parts(tensors_of(path), buckets):
        request = UpdateWeightsFromDistributedReqInput(
            names=[name for name, _ in part],
            dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in part],
            shapes=[list(tensor.shape) for _, tensor in part],
            group_name="trainer",
            selector=selector,
        )
        sending = threading.Thread(target=broadcast, args=(part, made[0]))
        sending.start()
        replies.append(list(wait(engine, engine.tokenizer_manager.update_weights_from_distributed(request, None))))
        sending.join()
    engine.end_weight_update()
    replies.append(list(engine.destroy_weights_update_group("trainer")))
    torch.distributed.destroy_process_group(made[0])
    return replies


def walked(engine: Any) -> dict[str, Any]:
    """``weight_walk``'s answer: by role and path, each tensor's address, shape and digest."""
    from sglang.srt.managers.io_struct import CheckWeightsReqInput

    request = CheckWeightsReqInput(action="checksum", skip_tensor_list=["walk"])
    _, message, *_ = wait(engine, engine.tokenizer_manager.check_weights(request, None))
    found: dict[str, Any] = json.loads(message)
    return found


def release(engine: Any, **tags: Any) -> None:
    """``/release_memory_occupation``, when the last request has left."""
    wait(engine, engine.tokenizer_manager.flush_cache(timeout_s=30.0))
    engine.release_memory_occupation(**tags)


def resume(engine: Any, **tags: Any) -> None:
    """``/resume_memory_occupation``."""
    engine.resume_memory_occupation(**tags)


STEPS: dict[str, Callable[..., Any]] = {
    "disk": from_disk,
    "tensor": from_tensor,
    "distributed": from_distributed,
    "walk": walked,
    "release": release,
    "resume": resume,
}

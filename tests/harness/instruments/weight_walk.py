"""Every tensor that hangs on an engine's models, from inside the scheduler, and what a released memory leaves in them.

``weight_walk:install``; then ``/weights_checker`` with ``skip_tensor_list=["walk"]`` answers with :func:`walk` of the target
and of the MTP assistant. ``weight_walk:discard`` makes SGLang's pause of the weights' memory do what it does on a card: what was allocated
there holds anything afterwards. Both run where nothing is on a card, so the walk reads every byte.
"""

import functools
import hashlib
import importlib
import json
from collections.abc import Iterator
from typing import Any

OWN = ("sglang_gemma4", "sglang.srt.models", "sglang.srt.layers")
"""Objects of these packages are looked into; a module's configuration, group or backend is not."""


def install() -> None:
    """Answer the walk."""
    from sglang.srt.managers.io_struct import CheckWeightsReqOutput
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as Manager

    original = Manager.check_weights

    @functools.wraps(original)
    def check(self: Any, request: Any) -> Any:
        if request.skip_tensor_list != ["walk"]:
            return original(self, request)
        found = {role: walk(runner.model) for role, runner in self._select_runners()}
        return CheckWeightsReqOutput(success=True, message=json.dumps(found))

    Manager.check_weights = check


def stray() -> None:
    """Leave two copies of weights on a model's layers, in a closure and in a list, as a path that packs its weight might."""
    from sglang.srt.models.gemma4_causal import Gemma4TextModel

    original: Any = Gemma4TextModel.__init__

    @functools.wraps(original)
    def built(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if len(self.layers) < 5:  # an assistant's
            return
        attention, packed = self.layers[2].self_attn, self.layers[2].self_attn.o_proj.weight.data.t().contiguous()
        forward = attention.forward

        def multiply(*args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs) if packed is not None else None

        attention.forward = functools.partial(multiply)
        self.layers[3].mlp.packed = [self.layers[3].mlp.down_proj.weight.data.clone()]

    Gemma4TextModel.__init__ = built


def discard() -> None:
    """Pausing the weights' memory leaves 0xff, NaN, in every byte of what loading a model allocated."""
    import torch
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as Manager

    original = Manager.release_memory_occupation

    @functools.wraps(original)
    def release(self: Any, request: Any) -> Any:
        kept, devices = self.memory_saver_adapter, torch.get_device_module
        self.memory_saver_adapter = Discarding(self)
        torch.get_device_module = lambda *_: torch.cpu  # SGLang asks for the machine's own, which of this torch is a card
        try:
            return original(self, request)
        finally:
            self.memory_saver_adapter, torch.get_device_module = kept, devices

    Manager.release_memory_occupation = release
    control_values: Any = importlib.import_module("sglang_gemma4.serving.control_values")
    control_values.CHECKS = {name: check for name, check in control_values.CHECKS.items() if "MemoryOccupation" not in name}


def kv_buffers(pool: Any) -> Iterator[Any]:
    """Of a pool of one kind of layers, or of two."""
    for part in (getattr(pool, "full_kv_pool", None), getattr(pool, "swa_kv_pool", None), pool):
        if part is not None and hasattr(part, "k_buffer"):
            yield from [*part.k_buffer, *part.v_buffer]


class Discarding:
    """The adapter of one release."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager

    def pause(self, tag: str) -> None:
        """As ``torch_memory_saver`` without a copy on the host; the KV cache holds NaN."""
        import torch

        from sglang_gemma4.models import derived

        for _, runner in self.manager._select_runners():
            if tag == "kv_cache":
                for buffer in kv_buffers(runner.token_to_kv_pool):
                    buffer.view(torch.uint8).fill_(0xFF)  # no number of a float type
            elif tag == "weights":
                for path, tensor in tensors_of(runner.model):
                    known = derived.entry(path)
                    if known is None or not known.host:
                        tensor.untyped_storage().fill_(0xFF)


def walk(model: Any) -> dict[str, Any]:
    """``tensors``: by path, each one's address, shape, digest and storage; ``registered``: by name, a parameter's or buffer's storage.

    Rows that no checkpoint has and nobody reads are left out of a digest: keys and values of layers that share another layer's KV.
    """
    unread: dict[int, int] = {}
    for layer in model.modules():
        if getattr(layer, "kv_shared_layer_index", None) is not None and layer.is_kv_shared_layer:
            unread |= {id(layer.qkv_proj.weight): layer.q_size, id(layer.k_norm.weight): 0, id(layer.v_norm.weight): 0}

    def seen(tensor: Any) -> list[Any]:
        read = tensor[: unread.get(id(tensor))] if tensor.dim() else tensor
        return [tensor.data_ptr(), list(tensor.shape), digest(read), storage(tensor)]

    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {
        "tensors": {path: seen(tensor) for path, tensor in tensors_of(model)},
        "registered": {name: storage(tensor) for name, tensor in named},
    }


def storage(tensor: Any) -> int:
    """Where the memory that it views begins."""
    address: int = tensor.untyped_storage().data_ptr()
    return address


def digest(tensor: Any) -> str:
    """Of its bytes."""
    import torch

    return hashlib.sha1(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()[:12]


def tensors_of(root: Any) -> Iterator[tuple[str, Any]]:
    """Each tensor that can be reached from a model, once, through modules, attributes, containers, closures, partials and methods."""
    import torch

    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("", root)]
    while stack:
        path, value = stack.pop()
        if id(value) in seen or value is None or isinstance(value, (str, bytes, int, float, bool, torch.dtype, torch.device, type)):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if value.device.type != "meta":
                yield path, value
        else:
            stack += [(f"{path}.{name}".lstrip("."), part) for name, part in inside(value)]


def inside(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value that are looked into, by name."""
    import torch

    if isinstance(value, torch.nn.Module):
        for name, part in [*value._parameters.items(), *value._buffers.items(), *value._modules.items()]:
            yield name, part
        for name, part in vars(value).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                yield name, part
    elif isinstance(value, dict):
        yield from ((str(name), part) for name, part in list(value.items()))
    elif isinstance(value, (list, tuple, set)):
        yield from ((str(number), part) for number, part in enumerate(value))
    elif isinstance(value, functools.partial):
        yield "func", value.func
        yield from ((f"args.{number}", part) for number, part in enumerate(value.args))
        yield from ((f"keywords.{name}", part) for name, part in value.keywords.items())
    elif hasattr(value, "__self__") and hasattr(value, "__func__"):
        yield "__self__", value.__self__
    elif hasattr(value, "__closure__"):
        cells = value.__closure__ or ()
        for name, cell in zip(value.__code__.co_freevars, cells, strict=True):
            try:
                yield f"<{name}>", cell.cell_contents
            except ValueError:
                continue
    elif type(value).__module__.startswith(OWN):
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, slot):
                    yield slot, getattr(value, slot)
        yield from getattr(value, "__dict__", {}).items()

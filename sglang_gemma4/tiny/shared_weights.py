"""One copy of random weights for several engines: the first to load fills them, the others map them.

``SGLANG_GEMMA4_SHARED_WEIGHTS=BYTES:FOLDER`` turns it on: tensors of BYTES or more (allocated by ``torch.empty``, as
in SGLang's layers) are shared among the processes with the same new FOLDER.

Two copies of a 49 GiB model fill a GPU; with one shared copy six arms of a benchmark fit. On a GPU the tensors are
shared as CUDA IPC handles, without one as mapped files. Smaller tensors are filled identically in each process. The
engine that filled the weights has to outlive the others, and none may write to a weight.
"""

import contextlib
import math
import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sglang_gemma4.patching.switches import SHARED_WEIGHTS

PATIENCE = 600.0
"""Seconds to wait for the first engine to fill the weights."""


class Hollow(TorchFunctionMode):
    """Makes ``torch.empty`` allocate one element for large floating-point tensors, whose memory is mapped later."""

    def __init__(self, large: int) -> None:
        super().__init__()
        self.large = large
        self.on = True
        self.made: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if not self.on:
            return func(*args, **kwargs)
        if func is not torch.empty:
            written = args[0] if args else kwargs.get("tensor")
            name = getattr(func, "__name__", "")
            if name.endswith("_") and not name.endswith("__") and self._is_hollow(written):
                return written  # an initial value that the mapped tensor replaces
            return func(*args, **kwargs)
        size = kwargs.pop("size", None) or (args[0] if args and not isinstance(args[0], int) else args)
        one = func(1, **kwargs)
        if not one.is_floating_point() or math.prod(size) * one.element_size() < self.large:
            return func(size, **kwargs)
        self.made.append(one)
        return one.expand(size)

    def _is_hollow(self, tensor: Any) -> bool:
        if not isinstance(tensor, torch.Tensor) or tensor.numel() * tensor.element_size() < self.large:
            return False
        return any(tensor.data_ptr() == one.data_ptr() for one in self.made)


class Sharing:
    """This process's share of one model's weights, claimed in ``folder``: it fills them if it is the first, else it maps them."""

    def __init__(self, large: int, folder: Path, name: str) -> None:
        self.large = large
        self.handles = folder / f"{name}.handles"
        self.claim = folder / f"{name}.claim"
        try:
            self.claim.open("x").write(str(os.getpid()))
            self.hollow = None
        except FileExistsError:
            self._wait()
            self.hollow = Hollow(large)

    def _wait(self) -> None:
        ends = time.monotonic() + PATIENCE
        while not self.handles.exists():
            owner = self.claim.read_text()
            if (owner and not Path(f"/proc/{owner}").exists()) or time.monotonic() > ends:
                raise RuntimeError(
                    f"process {owner}, which was to fill the shared weights, has not; look at its log, or run without --share-weights"
                )
            time.sleep(0.1)

    def attach(self, model: Any) -> set[str]:
        """Map the tensors that the first engine has filled and return their names; in the first engine itself, an empty set."""
        if self.hollow is None:
            return set()
        self.hollow.on = False
        handles = pickle.loads(self.handles.read_bytes())
        hollow = {one.data_ptr() for one in self.hollow.made}
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name in handles:
                hollow.discard(tensor.data_ptr())
                tensor.data = _mapped(tensor, *handles[name])
        if hollow:
            raise RuntimeError(f"{len(hollow)} large tensors are no weights of the model that filled them; run without --share-weights")
        return set(handles)

    def share(self, model: Any) -> None:
        """In the first engine: let others map this model's large tensors."""
        if self.hollow is not None:
            return
        handles: dict[str, Any] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            if tensor.is_floating_point() and tensor.numel() * tensor.element_size() >= self.large:
                handles[name] = _handle(tensor, self.handles.with_suffix(f".{len(handles)}.weights"))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        ready = self.handles.with_suffix(".part")
        ready.write_bytes(pickle.dumps(handles))
        ready.rename(self.handles)


def _handle(tensor: Any, path: Path) -> tuple[Any, ...]:
    if tensor.is_cuda:
        return tensor.untyped_storage()._share_cuda_(), tensor.storage_offset(), tensor.stride()
    size = tensor.numel() * tensor.element_size()
    mapped = torch.UntypedStorage.from_file(str(path), shared=True, nbytes=size)
    contiguous = tensor.data.contiguous()
    tensor.data = torch.empty(0, dtype=tensor.dtype).set_(mapped, 0, tensor.shape).copy_(contiguous)
    return (str(path), size), 0, tensor.stride()


def _mapped(like: Any, handle: Any, offset: int, stride: tuple[int, ...]) -> Any:
    if like.is_cuda:
        storage = torch.UntypedStorage._new_shared_cuda(*handle)
    else:
        storage = torch.UntypedStorage.from_file(handle[0], shared=True, nbytes=handle[1])
    return torch.empty(0, dtype=like.dtype, device=like.device).set_(storage, offset, like.shape, stride)


def check_format(quantization: str | None, config: Any) -> None:
    """Refuse weights that SGLang rewrites after they are filled: the other engines would map memory that the first one has freed.

    Args:
        quantization: SGLang's name of the format; None for bfloat16.
        config: the checkpoint's ``quantization_config``.

    Raises:
        ValueError: sharing was asked for, and the format is not float8 with a scale per output.
    """
    if not os.environ.get(SHARED_WEIGHTS) or quantization is None:
        return
    groups = (config or {}).get("config_groups", {}).values() if quantization == "compressed-tensors" else ()
    kept = [group["weights"]["type"] == "float" and group["weights"]["strategy"] == "channel" for group in groups]
    if not kept or not all(kept):
        raise ValueError(
            f"--share-weights: SGLang rewrites weights of {quantization} after loading; run without it, or take a checkpoint in fp8-dynamic"
        )


_loading: list[Sharing] = []


@contextlib.contextmanager
def loading(name: str) -> Iterator[None]:
    """Context for building and filling a model, which has the same name in each process; does nothing if sharing is off."""
    if not (asked := os.environ.get(SHARED_WEIGHTS)):
        yield
        return
    large, folder = asked.split(":", 1)
    sharing = Sharing(int(large), Path(folder), name)
    _loading.append(sharing)
    try:
        with sharing.hollow or contextlib.nullcontext():
            yield
    finally:
        _loading.pop()


def current() -> Sharing | None:
    """The sharing of the model that this process is loading."""
    return _loading[-1] if _loading else None

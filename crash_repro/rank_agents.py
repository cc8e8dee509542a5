"""What moves the bytes between ranks on a machine without a GPU: real NIXL agents over host memory, or the kernel in Mooncake's place."""

import importlib
import sys
import types
from pathlib import Path
from typing import Any

sent = {"bytes": 0, "pieces": 0}
"""KV that this process has posted, without SGLang's metadata of a request."""


def install(backend: str) -> None:
    """Prepare this process for a manager of ``backend``, "nixl" or "mooncake"."""
    {"nixl": _nixl, "mooncake": _mooncake}[backend]()


def _nixl() -> None:
    """SGLang names KV memory VRAM; here the same agents are told that it is DRAM, and what is posted is counted."""
    api: Any = importlib.import_module("nixl._api")
    if hasattr(api, "stock_agent"):
        return
    api.stock_agent = api.nixl_agent

    class HostAgent(api.stock_agent):  # type: ignore[name-defined]
        """A NIXL agent whose KV lies in host memory."""

        def register_memory(self, what: Any, mem_type: str | None = None, *args: Any, **kwargs: Any) -> Any:
            return super().register_memory(what, mem_type and "DRAM", *args, **kwargs)

        def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> Any:
            found = super().get_xfer_descs(descs, mem_type and "DRAM")
            if mem_type == "VRAM":
                self.last_lengths = [int(each[1]) for each in descs]
            return found

        def prep_xfer_dlist(self, agent_name: str, xfer_list: Any, mem_type: str | None = None, *args: Any, **kwargs: Any) -> Any:
            handle = super().prep_xfer_dlist(agent_name, xfer_list, mem_type and "DRAM", *args, **kwargs)
            if agent_name == "":
                self.lengths = {**getattr(self, "lengths", {}), id(handle): (handle, _lengths(xfer_list))}
            return handle

        def make_prepped_xfer(self, operation: str, local: Any, local_indices: Any, *args: Any, **kwargs: Any) -> Any:
            lengths = self.lengths[id(local)][1]
            sent["bytes"] += int(lengths[local_indices].sum())
            sent["pieces"] += len(local_indices)
            return super().make_prepped_xfer(operation, local, local_indices, *args, **kwargs)

        def initialize_xfer(self, operation: str, local: Any, *args: Any, **kwargs: Any) -> Any:
            lengths, self.last_lengths = getattr(self, "last_lengths", []), []
            sent["bytes"] += sum(lengths)
            sent["pieces"] += len(lengths)
            return super().initialize_xfer(operation, local, *args, **kwargs)

    api.nixl_agent = HostAgent


def staging_in_host_memory() -> None:
    """``SGLANG_DISAGG_STAGING_BUFFER=1`` starts on a machine without a card: its buffers are of host memory too."""
    where: Any = importlib.import_module("sglang.srt.disaggregation.common.staging_buffer")
    where._STAGING_SUPPORTED_DEVICE_TYPES = (*where._STAGING_SUPPORTED_DEVICE_TYPES, "cpu")


def _lengths(runs: Any) -> Any:
    """Bytes of each piece of runs (address, bytes, device, step, count), or of the library's own list."""
    import numpy as np

    if hasattr(runs, "shape"):
        return np.repeat(runs[:, 1].astype(np.int64), runs[:, 4].astype(np.int64))
    return np.array([runs[number][1] for number in range(runs.descCount())], dtype=np.int64)


def _mooncake() -> None:
    """``mooncake.engine`` by the kernel (tests/harness/instruments/pd_pair.py), counted."""
    sys.path.append(str(Path(__file__).parents[1]))
    pair: Any = importlib.import_module("tests.harness.instruments.pd_pair")

    class Counted(pair.TransferEngine):  # type: ignore[name-defined]
        """It names ranks by their process ids."""

        def batch_transfer_sync_write(self, session: str, sources: Any, targets: Any, lengths: Any) -> int:
            if len(lengths) and min(lengths) >= 0:
                sent["bytes"] += sum(lengths)
                sent["pieces"] += len(lengths)
            return int(super().batch_transfer_sync_write(session, sources, targets, lengths))

    module: Any = types.ModuleType("mooncake.engine")
    module.TransferEngine = Counted
    sys.modules |= {"mooncake": types.ModuleType("mooncake"), "mooncake.engine": module}
    where: Any = importlib.import_module("sglang.srt.distributed.device_communicators.mooncake_transfer_engine")
    where.init_mooncake_transfer_engine("127.0.0.1", 0, None)

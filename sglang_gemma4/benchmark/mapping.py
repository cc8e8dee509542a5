"""Whether another process can map one process's memory on this GPU: ``python -m sglang_gemma4.benchmark.mapping``.

``bench --share-weights`` depends on it, and some containers forbid it. Exit status 0: a second process read what the
first had written.
"""

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Without an argument: write, start a second process with an argument, and wait for it. With one: map and read."""
    import torch

    if len(sys.argv) > 1:
        torch.cuda.init()  # only an allocator that has started can open a handle
        handle, count = pickle.loads(Path(sys.argv[1]).read_bytes())
        storage = torch.UntypedStorage._new_shared_cuda(*handle)
        found = torch.empty(0, device="cuda").set_(storage, 0, (count,))
        assert bool((found == torch.arange(count, device="cuda")).all()), "another process's memory was mapped and reads differently"
        return
    written = torch.arange(1 << 22, dtype=torch.float32, device="cuda")
    torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile() as file:
        file.write(pickle.dumps((written.untyped_storage()._share_cuda_(), written.numel())))
        file.flush()
        done = subprocess.run([sys.executable, "-m", "sglang_gemma4.benchmark.mapping", file.name], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit((done.stderr.strip().splitlines() or ["no output"])[-1])


if __name__ == "__main__":
    main()

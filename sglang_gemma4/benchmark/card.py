"""Measures this GPU's copy bandwidth and GEMM rate for the roofline.

``python -m sglang_gemma4.benchmark.card`` prints them as JSON from a process that ends, so that no CUDA context stays
behind.
"""

import json
from collections.abc import Callable
from statistics import median
from typing import Any

from sglang_gemma4.benchmark.kernels.timer import prepare


def measure() -> dict[str, Any]:
    """{"bandwidth_gbs": GB/s of a copy, read and write counted, "teraflops": TFLOP/s of a square GEMM, "source": a sentence}.

    On CUDA it copies 2 GiB and multiplies 8192 x 8192 matrices in bfloat16; this takes about 2 s and 4.5 GiB, which
    are freed before it returns. On a CPU it takes 64 MiB and 1024 x 1024 in float32, the CPU engine's type. Results
    are medians after a warm-up.
    """
    import torch

    cuda = torch.cuda.is_available()
    device, name = ("cuda", torch.cuda.get_device_name()) if cuda else ("cpu", f"{torch.get_num_threads()} threads")
    size, width, dtype = (2**31, 8192, torch.bfloat16) if cuda else (2**26, 1024, torch.float32)

    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * size / _seconds(lambda: target.copy_(source), device) / 1e9
    source = target = torch.empty(0)

    left = torch.randn(width, width, device=device).to(dtype)
    right = torch.randn(width, width, device=device).to(dtype)
    out = torch.empty_like(left)
    rate = 2 * width**3 / _seconds(lambda: torch.mm(left, right, out=out), device) / 1e12
    left = right = out = torch.empty(0)
    if cuda:
        torch.cuda.empty_cache()
    kind = str(dtype).removeprefix("torch.")
    return {
        "bandwidth_gbs": round(bandwidth, 1),
        "teraflops": round(rate, 3),
        "source": f"measured on {'CUDA' if cuda else 'CPU'}: {name}, copy of {size >> 20} MiB, {width}^3 {kind} matrix product",
    }


def _seconds(function: Callable[[], object], device: str) -> float:
    call = prepare([function], device, graph=False)
    return median([call() for _ in range(20 if device == "cuda" else 5)]) / 1e6


if __name__ == "__main__":
    print(json.dumps(measure()))

"""Times single kernels: a harness, and cases that say what is compared. ``python -m sglang_gemma4.benchmark.kernels --list``."""

"""Unit tests import SGLang without a GPU: set the CPU engine's environment before the first of them does."""

import os

# Some tests fork. A child of a process whose OpenMP threads have run waits for ever for threads it does not have.
os.environ["OMP_NUM_THREADS"] = "1"

from sglang_gemma4.cpu.environment import prepare_this_process

prepare_this_process()

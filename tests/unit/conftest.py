"""Unit tests import SGLang without a GPU: set the CPU engine's environment before the first of them does."""

from sglang_gemma4.cpu.environment import prepare_this_process

prepare_this_process()

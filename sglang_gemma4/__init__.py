"""sglang-gemma4: Gemma 4 on SGLang 0.5.23, faster and without its known bugs.

Importing this package loads neither torch nor sglang; the command line answers in a blink.
"""

__version__ = "0.3.0"

SUPPORTED_SGLANG = "0.5.23"

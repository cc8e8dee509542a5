"""Pools that are sized as if levels had no scales beside them: ``TEST_INSTRUMENTS=uncounted_scales:install``."""

import importlib
from typing import Any


def install() -> None:
    """Before the patches are placed."""
    formats: Any = importlib.import_module("sglang_gemma4.memory.kv_formats")
    formats.count_scales = lambda _result, _sizes, _configurator: None

"""Whether Python finds SGLang's bytecode. Else each process of each start compiles it: over half of its import time."""

import os
import sys
from importlib.util import cache_from_source, find_spec
from pathlib import Path

SEEN = "srt/server_args.py"
"""A module that every process of a server imports."""


def reason_against() -> str | None:
    """Why SGLang's bytecode is missing and will not be kept, and the remedy; None if there is no such problem or no SGLang.

    Installers such as pip write it. uv does not unless told to (``UV_COMPILE_BYTECODE=1``), and images often set
    ``PYTHONDONTWRITEBYTECODE``, so that no start keeps it either.
    """
    found = find_spec("sglang")
    places = list(found.submodule_search_locations or ()) if found else []
    if not places or not (source := Path(places[0]) / SEEN).exists():
        return None
    kept = Path(cache_from_source(str(source)))
    if kept.exists():
        return None
    if sys.dont_write_bytecode:
        why = "PYTHONDONTWRITEBYTECODE is set"
    elif not os.access(folder := next(one for one in kept.parents if one.exists()), os.W_OK):
        why = f"{folder} cannot be written"
    else:
        return None
    return (
        f"SGLang's bytecode is nowhere and not kept ({why}): each process compiles its modules again. Run once: "
        f"python -m compileall -q -j 0 {Path(places[0]).parent}"
    )

"""CPU seconds to place all patches in a fresh process that has imported the server: through the index, and by SGLang's own walks.

python runs/2026-11-22-start-cost/measure.py [REPETITIONS] >> runs/2026-11-22-start-cost/raw.jsonl
"""

import json
import subprocess
import sys
import time


def place(own_walks: bool) -> float:
    """In this process."""
    from sglang_gemma4.cpu.environment import prepare_this_process

    prepare_this_process()
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.scheduler  # noqa: F401

    from sglang_gemma4 import importers, patching
    from sglang_gemma4.patches import load_all

    if own_walks:
        importers.KNOWN = "0" * 12  # SGLang's function then counts as unknown, and stays in use
    patches = load_all()
    began = time.process_time()
    outcomes = patching.apply(patches, {})
    taken = time.process_time() - began
    assert sum(outcome.state == "active" for outcome in outcomes) > 20
    return taken


if sys.argv[1:2] == ["--one"]:
    print(json.dumps({"own_walks": sys.argv[2] == "1", "cpu_seconds": round(place(sys.argv[2] == "1"), 3)}))
else:
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        for arm in "10":
            done = subprocess.run([sys.executable, __file__, "--one", arm], capture_output=True, text=True, check=True)
            print(done.stdout.splitlines()[-1], flush=True)

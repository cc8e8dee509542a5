"""CPU seconds of a process that imports what a server's processes do, with SGLang's bytecode on disk and without, in turns.

    python measure.py [TURNS]

A line a turn to standard output, as JSON. The first import, which writes the bytecode, is not counted.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

PROGRAM = (
    "from sglang_gemma4.cpu.environment import prepare_this_process; prepare_this_process();"
    "import sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler"
)


def run(folder: str, *, kept: bool) -> dict[str, float]:
    """Seconds of one import: of the processor, and of the clock."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"PYTHONPYCACHEPREFIX": folder} if kept else {"PYTHONPYCACHEPREFIX": f"{folder}-empty", "PYTHONDONTWRITEBYTECODE": "1"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, "-c", PROGRAM], env=environ, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"processor": round(spent, 2), "clock": round(time.monotonic() - began, 2)}


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        run(folder, kept=True)
        for turn in range(turns):
            print(json.dumps({"turn": turn, "kept": run(folder, kept=True), "anew": run(folder, kept=False)}), flush=True)


if __name__ == "__main__":
    main()

"""A process that imports SGLang's benchmark client once and runs it, forked, for each line on its stdin.

In: ``{"arguments": [...], "log": path}``. Out: ``{"ready": true}`` once, then ``{"pid": n}`` and ``{"exit_status": n}`` for each run.
The run itself is ``python -m sglang.benchmark.serving ARGUMENTS``; only its import, tens of seconds on a small machine, is shared.
"""

import json
import os
import sys


def main() -> None:
    """Serve lines until stdin closes."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the import prints must not stand between the answers
    import sglang.benchmark.serving  # noqa: F401

    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_run(order["arguments"], order["log"]))
        print(json.dumps({"pid": child}), file=answers)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"exit_status": os.waitstatus_to_exitcode(status)}), file=answers)


def _run(arguments: list[str], log: str) -> int:
    import traceback

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv = ["sglang.benchmark.serving", *arguments]
    try:
        sys.modules["sglang.benchmark.serving"].cli_main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    main()

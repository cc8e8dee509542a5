"""One engine on the GPU in a process of its own: ``engine_case.py CASE.json ANSWER.json``; the case is that of ``tests/harness/nursery``.

Its scheduler is a spawned process, which imports this file again; that is where ``TEST_INSTRUMENTS`` (``module:function``) takes effect.
"""

import json
import os
import pkgutil
import sys
from pathlib import Path

if __name__ == "__mp_main__" and os.environ.get("TEST_INSTRUMENTS"):
    pkgutil.resolve_name(os.environ["TEST_INSTRUMENTS"])()


def main() -> None:
    """Build the engine, send the groups, write the outputs."""
    import sglang

    from tests.harness.nursery import named, send

    case = json.loads(Path(sys.argv[1]).read_text())
    engine = sglang.Engine(model_path=case["model"], **case["engine"])
    clients = [named(group["client"], "engine_clients") if group["client"] else send for group in case["groups"]]
    Path(sys.argv[2]).write_text(json.dumps([client(engine, group) for client, group in zip(clients, case["groups"], strict=True)]))
    engine.shutdown()


if __name__ == "__main__":
    main()

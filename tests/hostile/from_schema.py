"""Schemathesis over the server's own /openapi.json.

``python -m tests.hostile.from_schema OPENAPI SEED PLACES`` is a process of its own: with a fixed hash seed the same cases come each time,
and they are made while the first requests are already sent. Cases of an operation come in rounds of ``ROUND``, each with a seed of its
own, so that one request can be made again without the others.
"""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.hostile.bases import BASES, GENERATING
from tests.hostile.exchange import Request

ROUND = 25
ROOT = Path(__file__).parents[2]
MORE = ("/v1/audio/transcriptions", "/v1/models/{model}", "/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel", "/v1/loads")
LIMITS = ("max_tokens", "max_completion_tokens", "max_new_tokens", "max_output_tokens", "num_predict")
MOST_TOKENS = 5
BOUNDARY = "hostile"
Place = tuple[int, int]
"""An operation's position in ``operations`` and a round."""


def operations(openapi: dict[str, Any]) -> list[tuple[str, str]]:
    """Method and path of each inference endpoint; those that generate come three times."""
    found = [(method, path) for path, methods in sorted(openapi["paths"].items()) for method in sorted(methods)]
    found = [(method, path) for method, path in found if path in BASES or path in MORE]
    return found + 2 * [(method, path) for method, path in found if path in GENERATING and method == "post"]


def place(position: int, count: int) -> tuple[Place, int]:
    """Where the ``position``-th case from schemathesis is found: operation and round, and the item in the round."""
    operation, turn = position % count, position // count
    return (operation, turn // ROUND), turn % ROUND


def generate(openapi: Path, seed: int, places: Iterable[Place]) -> Iterator[tuple[Place, list[Request]]]:
    """The cases of each place, made by another process, as they come."""
    words = [f"{operation}:{turn}" for operation, turn in places]
    command = [sys.executable, "-m", "tests.hostile.from_schema", str(openapi), str(seed), ",".join(words)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            entry = json.loads(line)
            yield (entry["operation"], entry["turn"]), [_read(case) for case in entry["cases"]]
    if process.returncode:
        raise RuntimeError(f"schemathesis ended with status {process.returncode}")


def _read(case: dict[str, Any]) -> Request:
    headers = tuple((name, value) for name, value in case["headers"])
    return Request(case["kind"], case["path"], base64.b64decode(case["body"]), method=case["method"], headers=headers)


def main() -> int:
    """Print the cases of the places asked for, a line each."""
    import schemathesis

    file, seed, words = sys.argv[1:]
    openapi = json.loads(Path(file).read_text())
    schema = schemathesis.openapi.from_dict(openapi)
    names = operations(openapi)
    for word in words.split(","):
        operation, turn = map(int, word.split(":"))
        method, path = names[operation]
        cases = [_case(case) for case in _cases(schema[path][method.upper()], f"{seed}/{operation}/{turn}")]
        print(json.dumps({"operation": operation, "turn": turn, "cases": cases}), flush=True)
    return 0


def _cases(operation: Any, seed: str) -> list[Any]:
    import hypothesis
    import schemathesis

    found: list[Any] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=ROUND,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE))
    def collect(case: Any) -> None:
        found.append(case)

    collect()
    return found


def _case(case: Any) -> dict[str, Any]:
    """A case as what goes over the wire; answers are kept short."""
    import requests

    _shorten(case.body, case.operation.path)
    prepared = requests.Request(**case.as_transport_kwargs(base_url="http://localhost")).prepare()
    body = prepared.body or b""
    body = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    content_type = prepared.headers.get("Content-Type", "")
    _, _, boundary = content_type.partition("boundary=")
    if boundary:  # a random one
        content_type, body = content_type.replace(boundary, BOUNDARY), body.replace(boundary.encode(), BOUNDARY.encode())
    headers = [("Content-Type", content_type)] if content_type else []
    kind = f"schema {case.operation.method.upper()} {case.operation.path}"
    return {"kind": kind, "method": prepared.method, "path": prepared.path_url, "headers": headers, "body": base64.b64encode(body).decode()}


def _shorten(body: Any, path: str) -> None:
    """Where an object would be answered at length it asks for few tokens; wrong numbers stay."""
    if not isinstance(body, dict):
        return
    if path.startswith("/api/") and isinstance(body.get("options") or {}, dict):
        body["options"] = {**(body.get("options") or {}), "num_predict": MOST_TOKENS}
    for name in LIMITS:
        if isinstance(body.get(name), int) and body[name] > MOST_TOKENS:
            body[name] = MOST_TOKENS
    if {"messages", "prompt"} & set(body):
        body.setdefault("max_tokens", MOST_TOKENS)
    if {"text", "input_ids", "input_embeds"} & set(body):
        parameters = body.setdefault("sampling_params", {})
        for one in parameters if isinstance(parameters, list) else [parameters]:
            if isinstance(one, dict):
                one.setdefault("max_new_tokens", MOST_TOKENS)
    body.pop("background", None)


if __name__ == "__main__":
    sys.exit(main())

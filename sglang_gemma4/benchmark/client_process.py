"""A process that imports SGLang's benchmark client once and runs it, forked, for each line on its stdin.

In: ``{"arguments": [...], "log": path}``. Out: ``{"ready": true}`` once, then ``{"pid": n}`` and ``{"exit_status": n}`` for each run.
The run itself is ``python -m sglang.benchmark.serving ARGUMENTS``; what all runs share is its import, tens of seconds on a small machine,
and after ``{"model": name, "prompts": [path, ...]}``, answered by ``{"prepared": n}``, the tokenizer and the token ids of those prompts.
Requests with images (20 s of drawing and encoding for 600) are kept beside the log, for other runs of the same seed; with ``"draw": true``
a run ends once it has them. With ``"rows": path`` a run sends the requests of that file (``loads``) and writes when their tokens came to
``"streams": path`` (``stream_client``).
"""

import hashlib
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

_tokenizers: dict[str, Any] = {}  # by what they were loaded from
_tokens: dict[str, dict[str, list[int]]] = {}  # likewise; token ids by text


def main() -> None:
    """Serve lines until stdin closes."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the import prints must not stand between the answers
    import sglang.benchmark.serving  # noqa: F401

    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        if "prompts" in order:
            print(json.dumps({"prepared": _prepare(order["model"], order["prompts"])}), file=answers)
            continue
        child = os.fork()
        if child == 0:
            os._exit(_run(order))
        print(json.dumps({"pid": child}), file=answers)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"exit_status": os.waitstatus_to_exitcode(status)}), file=answers)


def _prepare(model: str, paths: list[str]) -> int:
    """Tokenize the prompts of these files (ShareGPT's format), which every run would do again; how many."""
    serving: Any = sys.modules["sglang.benchmark.serving"]
    if model not in _tokenizers:
        _tokenizers[model], _tokens[model] = serving.get_tokenizer(model), {}
        _remember(_tokenizers[model], _tokens[model])
        load = serving.get_tokenizer
        serving.get_tokenizer = lambda name, *args, **kwargs: _tokenizers[model] if name == model else load(name, *args, **kwargs)
    for path in paths:
        for turns in json.loads(Path(path).read_text()):
            text = turns["conversations"][0]["value"]
            _tokens[model][text] = _tokenizers[model].encode(text)
    return len(_tokens[model])


def _remember(tokenizer: Any, tokens: dict[str, list[int]]) -> None:
    """Have ``tokenizer.encode(text)`` look among ``tokens`` first."""
    encode = tokenizer.encode

    def remembered(text: Any, *args: Any, **kwargs: Any) -> Any:
        known = tokens.get(text) if isinstance(text, str) and not args and not kwargs else None
        return encode(text, *args, **kwargs) if known is None else list(known)

    tokenizer.encode = remembered


def _keep_images(serving: Any, folder: Path, draw: bool) -> None:
    """Have this process's requests with images taken from ``folder``, or put there; the process ends then if it is only to ``draw``."""
    sample = serving.get_dataset

    def kept(arguments: Any, tokenizer: Any, model: Any = None) -> Any:
        if arguments.dataset_name != "image":
            return sample(arguments, tokenizer, model)
        shape = {name: value for name, value in vars(arguments).items() if name.startswith(("image_", "random_"))}
        asked = json.dumps([shape, arguments.num_prompts, arguments.seed, arguments.backend, str(model)], sort_keys=True)
        path = folder / f"requests-{hashlib.sha256(asked.encode()).hexdigest()[:16]}.pickle"
        if path.exists():
            requests = pickle.loads(path.read_bytes())
        else:
            requests = sample(arguments, tokenizer, model)
            part = path.with_suffix(".part")
            part.write_bytes(pickle.dumps(requests))
            part.rename(path)
        if draw:
            sys.exit(0)
        return requests

    serving.get_dataset = kept


def _run(order: dict[str, Any]) -> int:
    import traceback

    from sglang_gemma4.benchmark.stream_client import StreamClient

    serving: Any = sys.modules["sglang.benchmark.serving"]
    out = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv = ["sglang.benchmark.serving", *order["arguments"]]
    _keep_images(serving, Path(order["log"]).parent, order.get("draw", False))
    try:
        streams = StreamClient(serving, json.loads(Path(order["rows"]).read_text())) if "rows" in order else None
        if streams is not None:
            streams.install()
        serving.cli_main()
        if streams is not None:
            streams.write(Path(order["streams"]))
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

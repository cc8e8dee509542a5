"""``sglang-gemma4 serve``: SGLang's own server, on the GPU or on the CPU reference engine."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_gemma4 import terminal
from sglang_gemma4.cpu.environment import default_arguments, has_accelerator, launch_environment
from sglang_gemma4.diagnostics import preflight, variables
from sglang_gemma4.patching import switches
from sglang_gemma4.tiny import checkpoints


def serve(model: str, flags: Sequence[str]) -> int:
    """Replace this process by SGLang's server for ``model``; the flags are passed on unchanged.

    Without a GPU, the CPU reference engine's environment and flags are added unless the operator gave them.

    Raises:
        ValueError: a switch, the model, the assistant or the attention backend is wrong; nothing was started.
    """
    if problems := variables.problems():
        raise ValueError("; ".join(problems))
    path = resolve(model)
    arguments = ["--model-path", path, *_resolve_draft(flags)]
    fields = fields_of(arguments)
    # The content of a --config file is unknown here; the server's own preflight checks it.
    if "config" not in fields and switches.is_on(switches.MASTER) and switches.is_on(switches.PREFLIGHT):
        preflight.check(fields)
    environ = dict(os.environ)
    terminal.say(f"starting SGLang's server for {model}, whose imports take some 20 seconds")
    if not has_accelerator():
        environ = launch_environment(environ)
        arguments += default_arguments(arguments)
        terminal.say("no GPU found; serving with the CPU reference engine (exact, slow)")
    os.execve(sys.executable, [sys.executable, "-m", "sglang.launch_server", *arguments], environ)


def resolve(model: str) -> str:
    """The directory of a shipped tiny model or assistant, by name; other names and paths are returned unchanged."""
    shipped = model.removesuffix("-assistant") in checkpoints.NAMES and not Path(model).exists()
    return str(checkpoints.SHIPPED / model) if shipped else model


DRAFT_FLAGS = ("--speculative-draft-model-path", "--speculative-draft-model")  # the second is SGLang's alias


def _resolve_draft(flags: Sequence[str]) -> list[str]:
    resolved = list(flags)
    for position, flag in enumerate(resolved):
        name, equals, value = flag.partition("=")
        if name not in DRAFT_FLAGS:
            continue
        if equals:
            resolved[position] = f"{DRAFT_FLAGS[0]}={resolve(value)}"
        elif position + 1 < len(resolved):
            resolved[position : position + 2] = [DRAFT_FLAGS[0], resolve(resolved[position + 1])]
    return resolved


def fields_of(arguments: Sequence[str]) -> dict[str, Any]:
    """The flags by ``ServerArgs`` field names, without importing SGLang; sufficient for the preflight checks."""
    fields: dict[str, Any] = {}
    for position, flag in enumerate(arguments):
        if not flag.startswith("--"):
            continue
        name, equals, value = flag.removeprefix("--").partition("=")
        following = arguments[position + 1] if position + 1 < len(arguments) else "--"
        fields[name.replace("-", "_")] = value if equals else (True if following.startswith("--") else following)
    return fields

"""A part of a start that leaves files on disk, prepared in its own process unless an earlier start's files remain."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_gemma4.start import folder
from sglang_gemma4.start.child import Child


class FilesAhead:
    """Files that are prepared ahead, and the record of where they are.

    Args:
        what: the name in the log, and its verb: "were" or "was".
        kind: the name under which :mod:`folder` keeps the files' paths.
        card: the GPU's name.
        key: what decides which files there are.
    """

    held_up = True
    """Whether the start waits for the files."""

    def __init__(self, what: tuple[str, str], kind: str, card: str, key: Mapping[str, Any]) -> None:
        self.what, self.kind, self.card, self.key = what, kind, card, dict(key)
        self.child: Child | None = None

    def there(self) -> bool:
        """Whether all files of an earlier start still exist."""
        paths = folder.load(self.kind, self.card, self.key)
        return bool(paths) and all(Path(path).exists() for path in paths)

    def wait(self, seconds: float) -> str | None:
        """Wait until the child is done, ``seconds`` at most; return a log line, or None if no child was started.

        The child's answer has ``objects`` (paths), ``failed`` (pairs of what and why), ``seconds`` and, optionally, a
        number ``done``.
        """
        if self.child is None:
            return None
        began, said = time.monotonic(), self.child.answer(seconds)
        self.child = None
        name, was = self.what
        if isinstance(said, str):
            return f"{name} compiled ahead: {said}; the start compiles what it needs"
        if said["objects"]:
            folder.save(self.kind, self.card, self.key, said["objects"])
        failed = "".join(f"; not {kind}: {reason}" for kind, reason in said["failed"])
        count = f"{said['done']} of " if "done" in said else ""
        waited = f"; waited {time.monotonic() - began:.1f} s" if self.held_up else ""
        return f"{count}{name} {was} compiled ahead in {said['seconds']:.1f} s{waited}{failed}"

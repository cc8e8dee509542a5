"""SGLang's arguments in other clothes, for a check of SGLang that does not know what this package adds."""

from typing import Any


class SeenAs:
    """``ServerArgs`` with some resolved values as a step of SGLang's resolution is to see them; everything else is the original's.

    Args:
        server_args: SGLang's, which is not changed.
        values: what the step is to read, by argument.
    """

    def __init__(self, server_args: Any, **values: Any) -> None:
        self._server_args = server_args
        self._values = values

    @property
    def _resolved_overrides(self) -> list[tuple[str, dict[str, Any]]]:
        return [*(self._server_args._resolved_overrides or ()), ("sglang_gemma4.patching.arguments", self._values)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server_args, name)

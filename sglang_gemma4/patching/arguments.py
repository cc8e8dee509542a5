"""A ServerArgs view with some resolved values overridden, for SGLang checks that do not know our features."""

from typing import Any


class SeenAs:
    """``ServerArgs`` with some values overridden for one step of SGLang's resolution; all other values are the
    original's.

    Args:
        server_args: SGLang's, which is not changed.
        values: values to override, by argument.
    """

    def __init__(self, server_args: Any, **values: Any) -> None:
        self._server_args = server_args
        self._values = values

    @property
    def _resolved_overrides(self) -> list[tuple[str, dict[str, Any]]]:
        return [*(self._server_args._resolved_overrides or ()), ("sglang_gemma4.patching.arguments", self._values)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server_args, name)

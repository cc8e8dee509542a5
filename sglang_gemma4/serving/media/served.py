"""Whether this process prepares media for a Gemma 4.

SGLang's loaders and HTTP server are the same for all models. Hooks in them ask here, and leave other models' requests to stock.
"""

import threading

_here = threading.Event()


def mark(*_args: object, **_kwargs: object) -> None:
    """After ``Gemma4SGLangProcessor.__init__``, which runs in every process that loads media."""
    _here.set()


def is_gemma4() -> bool:
    return _here.is_set()

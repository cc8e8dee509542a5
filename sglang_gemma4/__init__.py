"""sglang-gemma4: Gemma 4 on SGLang 0.5.23, faster and without its known bugs.

Importing this package loads neither torch nor sglang; the command line answers in a blink.
"""

from pathlib import Path

__version__ = "0.2.0"

SUPPORTED_SGLANG = "0.5.23"

# In a checkout, patches/ stands beside this folder; installed, setup.py has put it inside. A process started in the
# checkout finds this folder first, whatever is installed: let it find patches/ too.
if not (Path(__file__).parent / "patches").is_dir() and (Path(__file__).parents[1] / "patches" / "__init__.py").is_file():
    __path__.append(str(Path(__file__).parents[1]))

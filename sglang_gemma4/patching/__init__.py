"""How a change to SGLang is declared, checked, placed, switched and reported.

- ``declare``: a change as data, what became of it in this process, and what it says
- ``hooks``: places a change's hooks, all or none; ``placement`` and ``importers`` find who else holds the original
- ``supported``: SGLang's version, and fingerprints of its source
- ``switches``: every environment variable; ``uses``: what a server must be for a change to act in it
- ``this_server``: the server that a process belongs to; ``arguments``: SGLang's arguments with some values replaced
"""

from sglang_gemma4.patching.declare import Entry as Entry
from sglang_gemma4.patching.declare import Kind as Kind
from sglang_gemma4.patching.declare import Outcome as Outcome
from sglang_gemma4.patching.declare import Part as Part
from sglang_gemma4.patching.declare import PatchError as PatchError
from sglang_gemma4.patching.declare import Seam as Seam
from sglang_gemma4.patching.declare import State as State
from sglang_gemma4.patching.declare import apply as apply
from sglang_gemma4.patching.declare import decline as decline
from sglang_gemma4.patching.declare import find_idle as find_idle
from sglang_gemma4.patching.declare import idle as idle
from sglang_gemma4.patching.declare import is_on as is_on
from sglang_gemma4.patching.declare import note as note
from sglang_gemma4.patching.declare import report as report
from sglang_gemma4.patching.declare import resolution_step as resolution_step
from sglang_gemma4.patching.declare import takes as takes
from sglang_gemma4.patching.declare import tell as tell
from sglang_gemma4.patching.declare import wanted as wanted
from sglang_gemma4.patching.declare import why_off as why_off

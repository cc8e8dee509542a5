"""Everything here runs under Triton's interpreter, which is made quick first."""

from tests.harness import quick_interpreter

quick_interpreter.install()

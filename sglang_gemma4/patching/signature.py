"""The part of a function's source that says how it is called."""

import ast
import textwrap


def signature_text(source: str) -> str:
    """The source's function without body and annotations: async or not, decorators, name, parameters and their
    defaults.

    Raises:
        TypeError: the source is not that of one function and so has no signature to pin.
    """
    nodes = ast.parse(textwrap.dedent(source)).body
    if len(nodes) != 1 or not isinstance(node := nodes[0], ast.FunctionDef | ast.AsyncFunctionDef):
        raise TypeError('pins="signature" needs a function or a method')
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    for argument in every:
        if argument is not None:
            argument.annotation = None
    node.returns = None
    node.body = [ast.Pass()]
    return ast.unparse(node)

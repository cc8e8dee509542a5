"""A turn that replaces a whole session, which stock ends the server for: it removes from a dictionary that it walks through."""

from typing import Any


def clear_all(session: Any, turn: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``Session.create_req``: remove every earlier turn where ``turn`` replaces them all; stock then finds none."""
    asked = turn.session_params
    if session.streaming or asked is None or not asked.replace or asked.rid is not None:
        return
    for node in list(session.req_nodes.values()):
        if node.req.rid in session.req_nodes:  # it was no child of one before it
            node.clear(session.req_nodes)

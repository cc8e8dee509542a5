"""Makes a turn that replaces a whole session work; stock ends the server, because it removes entries from a dict while iterating it."""

from typing import Any


def clear_all(session: Any, turn: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``Session.create_req``: if ``turn`` replaces all earlier turns, remove them, so that stock finds none."""
    asked = turn.session_params
    if session.streaming or asked is None or not asked.replace or asked.rid is not None:
        return
    for node in list(session.req_nodes.values()):
        if node.req.rid in session.req_nodes:  # not yet removed as a child of an earlier node
            node.clear(session.req_nodes)

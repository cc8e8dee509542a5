"""Clients of the field, each in an environment of its own, get what docs/clients.md says from the one server."""

import warnings
from pathlib import Path

import pytest

from sglang_gemma4.tiny import dialogues, world
from tests.clients import asked, run
from tests.harness.live_server import Server

DOCUMENTED = run.DOCS.read_text().splitlines() if run.DOCS.exists() else []


@pytest.mark.parametrize("name", run.CLIENTS)
def test_a_client_gets_what_the_table_says(server: Server, name: str) -> None:
    told = run.results(name, server.url)
    different, unmeasured = run.differences(told, DOCUMENTED)
    if unmeasured:
        warnings.warn(f"docs/clients.md marks as not measured: {'; '.join(unmeasured)}", RuntimeWarning, stacklevel=1)
    assert different == [], "python -m tests.clients --write writes docs/clients.md"


def test_every_script_is_run() -> None:
    scripts = {path.stem.removeprefix("with_") for path in Path(run.__file__).parent.glob("with_*.py")}
    assert scripts == set(run.CLIENTS)


def test_what_is_asked_is_of_the_tiny_world() -> None:
    fact = world.fact_of("ruler", "Belm")
    assert asked.QUESTION in fact.questions
    assert dialogues.answer_to(fact) == asked.ANSWER
    assert asked.TOOLS == [dialogues.WEATHER_TOOL]

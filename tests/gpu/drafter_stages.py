"""Stages of ``measure.py`` for EAGLE-3's, DFlash's and DSpark's drafts: does an engine start with the package, and what does a step cost?

    python tests/gpu/measure.py FOLDER drafter_stages

``drafters-tiny`` compares tokens with plain decoding in float32. 26B-A4B's layers with random weights show times: there near ties part the
answers, and none is asked to be alike. Its three arms share a folder, and plain decoding runs first. ``drafter_engines.py`` says what an
arm leaves in that folder.
"""

from tests.gpu.stages import OUT, PYTHON, Command, Stage

LIMIT = 280
"""Seconds of an engine with 26 billion random weights."""


def command(model: str, *words: str) -> Command:
    return (PYTHON, "-m", "tests.gpu.drafter_engines", f"{OUT}/drafters-{model}", model, *words)


def large(arm: str, decides: str) -> Stage:
    """One arm of 26B-A4B."""
    return Stage(f"drafters-{arm}", LIMIT + 20, decides, (command("26b-a4b", arm, "--limit", str(LIMIT)),))


STAGES: tuple[Stage, ...] = (
    Stage(
        "drafters-tiny",
        400,
        "tokens of plain decoding with drafts that are partly accepted",
        (command("tiny-26b-a4b", "--limit", "120", "--same", "0.98"),),
        dry=(command("tiny-26b-a4b", "--limit", "1200", "--passes", "1", "--same", "1"),),
    ),
    large("plain", "steps of 26B-A4B without a draft, for the three that follow"),
    large("dflash", "the same with a DFlash draft of 0.43 billion parameters, in blocks of 16"),
    large("eagle3", "the same with an EAGLE-3 draft, 3 steps"),
    large("dspark", "the same with a DSpark draft of five layers, in blocks of 7"),
)

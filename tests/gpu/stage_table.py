"""All stages in one table, by subject. ``measure.py`` runs them by a stage's name, a subject, or a group."""

from collections.abc import Sequence

from tests.gpu import (
    beside_stages,
    curve_stages,
    drafter_stages,
    host_stages,
    kv_format_stages,
    memory_stages,
    pd_stages,
    peer_stages,
    quant_stages,
    session_stages,
    stages,
)
from tests.gpu.stages import Stage

TABLE: dict[str, tuple[Stage, ...]] = {
    "stages": stages.STAGES,
    "beside_stages": beside_stages.STAGES,
    "curve_stages": curve_stages.STAGES,
    "drafter_stages": drafter_stages.STAGES,
    "host_stages": host_stages.STAGES,
    "kv_format_stages": kv_format_stages.STAGES,
    "memory_stages": memory_stages.STAGES,
    "pd_stages": pd_stages.STAGES,
    "peer_stages": peer_stages.STAGES,
    "quant_stages": quant_stages.STAGES,
    "session_stages": session_stages.STAGES,
}
"""By module of this folder, whose docstring describes the arms. A stage's name is unique in all."""

ALL = tuple(stage for subject in TABLE.values() for stage in subject)
GROUPS = {**stages.GROUPS, **{subject: tuple(stage.name for stage in members) for subject, members in TABLE.items()}}
"""Names that stand for several stages: a subject's, and some of the package's as a whole."""


def named(words: Sequence[str]) -> list[Stage]:
    """Stages by name, subject or group, in the table's order; without a word those of ``stages.py``.

    Raises:
        ValueError: a name is unknown.
    """
    wanted = {name for word in words or ["stages"] for name in GROUPS.get(word, (word,))}
    if strange := wanted - {stage.name for stage in ALL}:
        raise ValueError(f"no stage is called {', '.join(sorted(strange))}; measure.py --list shows the stages and groups")
    return [stage for stage in ALL if stage.name in wanted]

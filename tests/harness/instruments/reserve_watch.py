"""What the calculated reserve says of a CPU engine, as if it were a card's: ``TEST_INSTRUMENTS=reserve_watch:install``."""

from typing import Any


def install() -> None:
    from sglang.srt.runtime_context import get_server_args

    from sglang_gemma4.memory import reserve, reserve_settings

    def left(scheduler: Any) -> tuple[str, bool]:
        assert scheduler.tp_worker is not None
        given = get_server_args()
        need, steps = reserve_settings.needed(given), reserve_settings.steps_of(given)
        said, _ = reserve_settings.line(need.total + reserve.MARGIN + reserve.GIB, need, 2 * need.total, 0.5, None)
        return f"{steps}; {need}; {said}", True

    reserve_settings.left = left

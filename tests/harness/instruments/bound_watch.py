"""Samples of what holds requests back at every step, and a report each second: ``TEST_INSTRUMENTS=bound_watch:install``."""


def install() -> None:
    from sglang_gemma4.memory import bound

    bound.LOOK_SECONDS = 0.0
    bound.REPORT_SECONDS = 1.0

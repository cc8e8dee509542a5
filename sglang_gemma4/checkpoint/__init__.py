"""What a Gemma 4 checkpoint has to hold, and whether its files hold it. Imports neither SGLang nor torch."""


class PreflightError(ValueError):
    """The server cannot be started as asked; the message is one line."""

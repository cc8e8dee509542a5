"""What a Gemma 4 checkpoint has to hold, and whether its files hold it; no SGLang in here, and torch nowhere."""


class PreflightError(ValueError):
    """The server cannot be started as asked; the message is one line."""

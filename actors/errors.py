"""Errors that stop the server from starting or continuing: a plain sentence with the remedy, for the command line."""


class EngineLoadError(Exception):
    """Loading failed. `code` is one of `LoadFailed.code`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class FrontsLost(Exception):
    """No web process is left, and no more are started."""

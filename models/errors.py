"""The errors of loading a model. Each message names the offending key or number and says what to do about it.

`code` is the error code that the front shows.
"""

from typing import ClassVar, Literal

LoadErrorCode = Literal["invalid_checkpoint", "unsupported_model", "out_of_memory", "unsupported_device"]


class LoadError(ValueError):
    """The model cannot be served as requested."""

    code: ClassVar[LoadErrorCode]


class CheckpointError(LoadError):
    """The folder is not a sound checkpoint: damaged, incomplete or contradictory.

    `key` is what was read (a config key, a tensor or a file name), `value` is its content.
    """

    code: ClassVar[LoadErrorCode] = "invalid_checkpoint"

    def __init__(self, key: str, value: object, remedy: str) -> None:
        # A hostile checkpoint must not flood the log.
        super().__init__(f"{_cut(key)} = {_cut(repr(value))}: {_cut(remedy, 1000)}")
        self.key = key
        self.value = value
        self.remedy = remedy


def is_failure(error: BaseException) -> bool:
    """Whether a library failed, be it by a panic of code in Rust, which Python gets as no Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _cut(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[:most] + "…"


class UnsupportedModel(CheckpointError):
    """The checkpoint is sound, but needs something that the decoder does not implement."""

    code: ClassVar[LoadErrorCode] = "unsupported_model"


class DoesNotFit(LoadError):
    """The model, or one sequence of full length, does not fit into memory. The message names the flags."""

    code: ClassVar[LoadErrorCode] = "out_of_memory"


class UnsupportedDevice(LoadError):
    """The requested device or number format is not available here."""

    code: ClassVar[LoadErrorCode] = "unsupported_device"

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
        shown = repr(value)
        if len(shown) > 200:  # a hostile checkpoint must not flood the log
            shown = shown[:200] + "…"
        super().__init__(f"{key} = {shown}: {remedy}")
        self.key = key
        self.value = value
        self.remedy = remedy


class UnsupportedModel(CheckpointError):
    """The checkpoint is sound, but needs something that the decoder does not implement."""

    code: ClassVar[LoadErrorCode] = "unsupported_model"


class DoesNotFit(LoadError):
    """The model, or one sequence of full length, does not fit into memory. The message names the flags."""

    code: ClassVar[LoadErrorCode] = "out_of_memory"


class UnsupportedDevice(LoadError):
    """The requested device or number format is not available here."""

    code: ClassVar[LoadErrorCode] = "unsupported_device"

"""The models of a server that has several: their states."""

from typing import Literal

ModelState = Literal["unloaded", "loading", "ready", "draining", "failed"]

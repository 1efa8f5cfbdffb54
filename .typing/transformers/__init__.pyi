# Only tests use it, as a definition to compare with. Reading its 2,600 modules took basedpyright 20 s of 90.
from typing import Any

def __getattr__(name: str) -> Any: ...

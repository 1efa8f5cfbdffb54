"""Machine code from the disk cache, without its LLVM bitcode being read.

numba keeps both for each function, and parses the bitcode at every start, though only a function that is compiled anew
and calls this one needs it. Here it is parsed when it is asked for, so the bundled model loads in 0.42 s instead of
0.5. The names that the bitcode defines, which numba looks up, are kept beside it.
"""

from typing import Any

from llvmlite import binding
from numba.core.codegen import JITCodeLibrary


class CachedLibrary(JITCodeLibrary):
    _bitcode: bytes | None = None

    def serialize_using_object_code(self) -> Any:  # Any: numba is untyped
        name, kind, (code, bitcode) = super().serialize_using_object_code()
        module = self._get_module_for_linking()
        symbols = (*module.functions, *module.global_variables)
        defined = [symbol.name for symbol in symbols if not symbol.is_declaration]
        return name, kind, (code, (bitcode, defined))

    @classmethod
    def _unserialize(cls, codegen: Any, state: Any) -> Any:
        name, _, (code, (bitcode, defined)) = state
        library = codegen.create_library(name)
        library.enable_object_caching()
        library._set_compiled_object(code)
        library._finalize_final_module()
        codegen._engine._defined_symbols.update(defined)
        library._bitcode = bitcode
        return library

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None and self._bitcode is not None:
            self._shared_module = binding.parse_bitcode(self._bitcode)
        return super()._get_module_for_linking()

"""The served model as Ollama's clients list it."""

from datetime import UTC, datetime
from hashlib import sha256

import msgspec

from ...protocol.ollama_responses import (
    OllamaCapability,
    OllamaModel,
    OllamaModelDetails,
    OllamaModelPage,
    OllamaRunningModel,
)
from ...protocol.served_models import LATEST
from ...protocol.steps import Ready

NEVER = "2318-01-01T00:00:00Z"  # what Ollama says of a model that it does not unload


def model_entry(name: str, created: int, ready: Ready | None) -> OllamaModel:
    """`ready` is None for a model that was never loaded: its size is not known."""
    tagged = name if ":" in name else name + LATEST
    identity = repr((name, created, ready and (ready.architecture, ready.parameters, ready.dtype, ready.quantize)))
    return OllamaModel(
        name=tagged,
        model=tagged,
        modified_at=_date(created),
        size=ready.memory.weights_bytes if ready else 0,
        digest=sha256(identity.encode()).hexdigest(),
        details=_details(ready),
    )


def running_entry(name: str, created: int, ready: Ready) -> OllamaRunningModel:
    entry = model_entry(name, created, ready)
    return OllamaRunningModel(
        **msgspec.structs.asdict(entry),
        expires_at=NEVER,
        size_vram=0 if ready.device == "cpu" else entry.size,
        context_length=ready.context_length,
    )


def model_page(created: int, ready: Ready | None, template: str | None) -> OllamaModelPage:
    """`ready` is None for a model that was never loaded: the page says less."""
    given = ready.sampling_defaults.items() if ready else ()
    defaults = "\n".join(f"{name} {value:g}" for name, value in sorted(given))
    return OllamaModelPage(
        parameters=defaults,
        template=template or "",
        details=_details(ready),
        model_info={
            "general.architecture": ready.architecture,
            "general.basename": ready.model,
            "general.parameter_count": ready.parameters,
            f"{ready.architecture}.context_length": ready.context_length,
            f"{ready.architecture}.vocab_size": ready.vocab_size,
        }
        if ready
        else {},
        capabilities=_capabilities(ready, template or ""),
        modified_at=_date(created),
    )


def _capabilities(ready: Ready | None, template: str) -> list[OllamaCapability]:
    """By what the chat template knows; of a classifier none that Ollama has a word for."""
    if ready is not None and ready.pooling is not None:
        return ["embedding"] if ready.pooling.task == "embed" else []
    found: list[OllamaCapability] = ["completion"]
    if "tools" in template:
        found.append("tools")
    if "enable_thinking" in template or "<think>" in template:
        found.append("thinking")
    return found


def _details(ready: Ready | None) -> OllamaModelDetails:
    if ready is None:
        return OllamaModelDetails(family="", families=[], parameter_size="", quantization_level="")
    return OllamaModelDetails(
        family=ready.architecture,
        families=[ready.architecture],
        parameter_size=_short(ready.parameters),
        quantization_level=(ready.dtype if ready.quantize == "none" else ready.quantize).upper(),
    )


def _short(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.1f}M"


def _date(created: int) -> str:
    return datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")

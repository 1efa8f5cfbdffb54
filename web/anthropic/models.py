"""The served model as Anthropic's clients list it."""

from datetime import UTC, datetime

from ...protocol.anthropic_responses import AnthropicModel
from ...protocol.openai_responses import ModelCard


def anthropic_model(card: ModelCard) -> AnthropicModel:
    return AnthropicModel(
        id=card.id,
        display_name=card.id,
        created_at=datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z"),
        max_input_tokens=card.max_model_len,
        max_tokens=card.max_model_len,
    )

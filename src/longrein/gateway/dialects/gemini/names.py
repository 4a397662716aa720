"""Names of fields in Gemini requests. Google reads ``camelCase`` and ``snake_case`` alike."""

from __future__ import annotations

import re
from typing import Any

_NAMES = (
    *("generateContentRequest", "systemInstruction", "toolConfig", "generationConfig", "cachedContent"),
    *("thoughtSignature", "functionCall", "functionResponse"),
    *("functionDeclarations", "parametersJsonSchema"),
    *("topP", "topK", "maxOutputTokens", "stopSequences", "candidateCount", "thinkingConfig", "includeThoughts"),
    *("presencePenalty", "frequencyPenalty", "responseMimeType", "responseSchema", "responseJsonSchema"),
    *("responseModalities", "responseLogprobs", "speechConfig", "imageConfig"),
)
_CAMEL = {re.sub("([A-Z])", lambda found: f"_{found[1].lower()}", name): name for name in _NAMES}


def camel(fields: dict[str, Any]) -> dict[str, Any]:
    """The same fields, those that we know in ``camelCase``. Not what is in them."""
    return {_CAMEL.get(name, name): value for name, value in fields.items()}

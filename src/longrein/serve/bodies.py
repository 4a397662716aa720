"""JSON bodies -> typed requests; whatever is wrong with one is a 400 that names the place."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from longrein.serve.refusals import bad_request

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Body = TypeVar("Body")


def read_body(kind: type[Body], body: bytes) -> Body:
    """Decode a body; fields that ``kind`` does not name are ignored, as vLLM ignores them.

    Raises:
        GatewayRequestError: 400, no JSON or a wrong type, with the path of the field.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise bad_request(str(error)) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad_request(f"the request body is not JSON: {error}") from error

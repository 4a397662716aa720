"""Python values as JSON between a judge and the code under test: only plain ones cross, whatever is sent.

Part of a hidden test. Everything else stays where it was made and goes by a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

_CONTAINERS: dict[str, type[Any]] = {"dict": dict, "list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_ATOMS: dict[str, type[Any]] = {"float": float, "complex": complex}


def packed(value: Any, keep: Callable[[Any], int]) -> Any:
    """A value as JSON; ``keep`` numbers what is not plain. Subclasses of plain types become those."""
    if value is None or type(value) in (bool, str, int):
        return value
    if type(value) is range:
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, bytes):
        return {"bytes": bytes(value).hex()}
    for name, kind in _ATOMS.items():
        if isinstance(value, kind):
            return {name: repr(kind(value))}
    for name, kind in _CONTAINERS.items():
        if isinstance(value, kind):
            items: Any = dict[Any, Any].items(value) if kind is dict else kind.__iter__(value)
            return {name: [packed(item, keep) for item in items]}
    return {"kept": keep(value)}


def unpacked(sent: Any, kept: Callable[[int], Any]) -> Any:
    """The value again. Raises ``ValueError``, ``TypeError`` or ``KeyError`` for what :func:`packed` never makes."""
    if not isinstance(sent, dict):
        if isinstance(sent, (list, float)):
            raise TypeError("no packed value")
        return sent
    ((name, inner),) = cast("dict[str, Any]", sent).items()
    if name == "kept":
        return kept(int(inner))
    if name == "range":
        return range(*inner)
    if name == "bytes":
        return bytes.fromhex(inner)
    if name in _ATOMS:
        return _ATOMS[name](inner)
    return _CONTAINERS[name](unpacked(item, kept) for item in inner)

"""Which call a result belongs to, where calls and results may come without ids."""

from __future__ import annotations

from collections import defaultdict, deque

import msgspec


class _Call(msgspec.Struct, kw_only=True):
    call_id: str
    answered: bool = False


class OpenCalls:
    """The calls of one turn that no result has answered yet. Each is found at once, however many there are."""

    def __init__(self) -> None:
        self._by_id: defaultdict[str, deque[_Call]] = defaultdict(deque)
        self._by_name: defaultdict[str, deque[_Call]] = defaultdict(deque)

    def add(self, call_id: str, name: str) -> None:
        """A call of the turn."""
        call = _Call(call_id=call_id)
        self._by_id[call_id].append(call)
        self._by_name[name].append(call)

    def answer(self, call_id: str | None, name: str) -> str:
        """The id of the call that a result answers: the first of that id, else of that name, else what it says."""
        for calls in (self._by_id.get(call_id or ""), self._by_name.get(name)):
            # Those answered under their other name are still in here.
            while calls:
                call = calls.popleft()
                if not call.answered:
                    call.answered = True
                    return call.call_id
        return call_id or ""

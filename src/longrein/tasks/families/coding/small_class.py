"""Implement a class whose methods depend on what came before."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from longrein.tasks.families.base import Draft
from longrein.tasks.families.code_test import Methods, code_test, written
from longrein.tasks.families.words import words

Calls = tuple[tuple[Any, ...], ...]


class _Rules(msgspec.Struct, frozen=True, kw_only=True):
    capacity: int
    step: int
    drops_oldest: bool
    """When full, the oldest item goes; otherwise the least used one (the oldest among equals)."""
    put: str
    get: str
    total: str
    undo: str
    error: str
    level: int


class SmallClass:
    """A bounded store of named numbers; level 2 adds uses and totals, level 3 undoing."""

    name = "small_class"
    levels = (1, 2, 3)
    needs = ("python3",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        """Capacity, rule of removal, names and errors are the secret."""
        names = words(rng, 5)
        rules = _Rules(
            capacity=rng.randint(2, 5), step=rng.randint(2, 9), drops_oldest=level == 1 or rng.random() < 0.5,
            put=f"put_{names[0]}", get=f"get_{names[1]}", total=f"total_{names[2]}", undo=f"undo_{names[3]}",
            error=rng.choice(["KeyError", "ValueError", "LookupError", "IndexError"]), level=level,
        )  # fmt: skip
        name = names[4].title()
        runs = [_calls(rng, rules) for _ in range(14)] + [((rules.get, "a"),), ((rules.put, "a", 1), (rules.get, "a"))]
        example = _calls(rng, rules)[:7]
        shown = "\n".join(
            f"  .{method}({', '.join(map(repr, arguments))}) -> "
            f"{result if not isinstance(result, dict) else 'raises ' + rules.error}"
            for (method, *arguments), result in zip(example, _results(rules, example), strict=True)
        )
        return Draft(
            secret=f"{rules}",
            prompt=f"Write solution.py with a class {name} (made without arguments) that keeps at most "
            f"{rules.capacity} named "
            f"numbers.\n{_words(rules)}\nFor example, on a fresh object, one after the "
            f""
            f"other:\n{shown}",
            files={},
            oracle=(written("solution.py", _source(name, rules)),),
            tests=code_test(
                [
                    Methods(module="solution", name=name, arguments=(), methods=run, expected=_results(rules, run))
                    for run in runs
                ]
            ),
            trivial={
                "empty_file": (": > solution.py",),
                "empty_class": (written("solution.py", f"class {name}:\n    pass"),),
                "returns_nothing": (
                    written(
                        "solution.py", f"class {name}:\n    def __getattr__(self, _):\n        return lambda *a: None"
                    ),
                ),
                "raises_always": (
                    written(
                        "solution.py",
                        f"class {name}:\n    def __getattr__(self, _):\n        def f(*a):\n            raise "
                        f"{rules.error}\n        return f",
                    ),
                ),
            },
        )


def _words(rules: _Rules) -> str:
    goes = "the oldest one" if rules.drops_oldest else "the one that was read least often (the oldest among equals)"
    lines = [
        f"- {rules.put}(name, number) stores a number and returns how many are stored then. A name that is there gets "
        f"number + {rules.step} in place of number, and keeps its age and its reads. A new name that finds the store "
        f"full first removes {goes}; age counts from when a name was first put since it was last absent.",
        f"- {rules.get}(name) returns its number, and counts as one read; it raises {rules.error} for a name that "
        f"is not there.",
    ]
    if rules.level >= 2:
        lines.append(f"- {rules.total}() returns the sum of all stored numbers times their reads.")
    if rules.level >= 3:
        lines.append(
            f"- {rules.undo}() takes back the last {rules.put} that was not taken back yet, with everything that it "
            f"changed or removed (all is as it was right before it, reads included), and returns True; False if "
            f"there is none."
        )
    return "\n".join(lines)


def _calls(rng: random.Random, rules: _Rules) -> Calls:
    def one() -> tuple[Any, ...]:
        name = rng.choice("abcdefg"[: rules.capacity + 2])
        choices: list[tuple[Any, ...]] = [(rules.put, name, rng.randint(-9, 30))] * 3 + [(rules.get, name)] * 2
        choices += [(rules.total,)] if rules.level >= 2 else []
        choices += [(rules.undo,)] if rules.level >= 3 else []
        return rng.choice(choices)

    return tuple(one() for _ in range(rng.randint(10, 22)))


def _results(rules: _Rules, calls: Calls) -> list[Any]:
    store: dict[str, list[int]] = {}
    past: list[dict[str, list[int]]] = []
    results: list[Any] = []
    for method, *arguments in calls:
        if method == rules.put:
            past.append({name: [*entry] for name, entry in store.items()})
            results.append(_put(rules, store, *arguments))
        elif method == rules.get:
            entry = store.get(arguments[0])
            results.append({"raises": rules.error} if entry is None else entry[0])
            if entry is not None:
                entry[1] += 1
        elif method == rules.total:
            results.append(sum(number * reads for number, reads in store.values()))
        else:
            results.append(bool(past))
            store = past.pop() if past else store
    return results


def _put(rules: _Rules, store: dict[str, list[int]], name: str, number: int) -> int:
    if name in store:
        store[name][0] = number + rules.step
        return len(store)
    if len(store) == rules.capacity:
        del store[next(iter(store)) if rules.drops_oldest else min(store, key=lambda key: store[key][1])]
    store[name] = [number, 0]
    return len(store)


def _source(name: str, rules: _Rules) -> str:
    goes = "next(iter(self.store))" if rules.drops_oldest else "min(self.store, key=lambda key: self.store[key][1])"
    return f"""class {name}:
    def __init__(self):
        self.store, self.past = {{}}, []

    def {rules.put}(self, name, number):
        self.past.append({{key: list(entry) for key, entry in self.store.items()}})
        if name in self.store:
            self.store[name][0] = number + {rules.step}
            return len(self.store)
        if len(self.store) == {rules.capacity}:
            del self.store[{goes}]
        self.store[name] = [number, 0]
        return len(self.store)

    def {rules.get}(self, name):
        if name not in self.store:
            raise {rules.error}(name)
        self.store[name][1] += 1
        return self.store[name][0]

    def {rules.total}(self):
        return sum(number * reads for number, reads in self.store.values())

    def {rules.undo}(self):
        if not self.past:
            return False
        self.store = self.past.pop()
        return True
"""

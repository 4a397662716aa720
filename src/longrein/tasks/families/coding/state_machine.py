"""Implement a state machine from its table, which lies in a file."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.code_test import Call, code_test, lazy_functions, written
from longrein.tasks.families.words import words

Rule = tuple[str, str, str]
"""Event, next state, output."""


class StateMachine:
    """Three to six states; an unknown event is an error or leads to a trap, as the prompt says."""

    name = "state_machine"
    levels = (1, 2, 3)
    needs = ("python3",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        """The table is the secret."""
        states, events = words(rng, level + 2), rng.sample("abcdefgh", level + 1)
        outputs = rng.sample("0123456789", 4)
        table = {state: _rules(rng, states, events, outputs) for state in states}
        text = "".join(
            f"{state} {event} {after} {out}\n" for state, rules in table.items() for event, after, out in rules
        )
        limit = rng.randint(4, 7)
        runs = ["", *events, "z", *(_events(rng, events, rng.randint(3, 24)) for _ in range(14))]
        examples = [
            ((run,), _run(table, states[0], limit, run)) for run in (_events(rng, events, 5), _events(rng, events, 7))
        ]
        shown = "\n".join(f"  run({run!r}) == {result!r}" for (run,), result in examples)
        return Draft(
            secret=text,
            prompt=f"machine.txt describes a state machine, one transition a line: state, event, next state, output.\n"
            f"Write solution.py with a function run(events). events is a string, one letter an event. Begin in state "
            f"{states[0]!r}; for each event take its transition and add its output to the result. An event without a "
            f"transition in the present state adds '-' and leads back to {states[0]!r}; after {limit} such events "
            f"(in all), stop at once and add '!'. Return the result, a string. solution.py must work without "
            f"machine.txt.\nFor example:\n{shown}",
            files={"machine.txt": text},
            oracle=("cat machine.txt", written("solution.py", _source(table, states[0], limit))),
            tests=code_test(
                [
                    Call(module="solution", name="run", arguments=(run,), expected=_run(table, states[0], limit, run))
                    for run in runs
                ]
            ),
            trivial=lazy_functions("run", examples),
        )


def _rules(rng: random.Random, states: list[str], events: list[str], outputs: list[str]) -> list[Rule]:
    known = rng.sample(events, rng.randint(max(1, len(events) - 1), len(events)))
    return [(event, rng.choice(states), rng.choice(outputs)) for event in known]


def _events(rng: random.Random, events: list[str], count: int) -> str:
    return "".join(rng.choice([*events, *events, "z"]) for _ in range(count))


def _run(table: dict[str, list[Rule]], start: str, limit: int, events: str) -> str:
    state, result, wrong = start, "", 0
    for event in events:
        rule = next((rule for rule in table[state] if rule[0] == event), None)
        if rule is not None:
            state, result = rule[1], result + rule[2]
            continue
        state, result, wrong = start, result + "-", wrong + 1
        if wrong == limit:
            return result + "!"
    return result


def _source(table: dict[str, list[Rule]], start: str, limit: int) -> str:
    rules = {(state, event): (after, out) for state, rules in table.items() for event, after, out in rules}
    return f"""TABLE = {rules!r}


def run(events):
    state, result, wrong = {start!r}, "", 0
    for event in events:
        if (state, event) in TABLE:
            state, out = TABLE[state, event]
            result += out
            continue
        state, wrong = {start!r}, wrong + 1
        result += "-"
        if wrong == {limit}:
            return result + "!"
    return result
"""

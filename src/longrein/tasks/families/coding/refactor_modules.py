"""Move a function that several files have copies of into one module, keeping what the files do."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.code_test import Call, Shape, code_test, written
from longrein.tasks.families.words import name_of, words


class RefactorModules:
    """Two to four modules with the same copied function; at level 3 one copy has another name."""

    name = "refactor_modules"
    levels = (1, 2, 3)
    needs = ("python3",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        """What the copied function computes and who uses it is the secret."""
        modules = words(rng, level + 2)
        shared, users = modules[0], modules[1:]
        helper, other = name_of(rng), name_of(rng)
        a, b, c = rng.randint(2, 40), rng.randint(2, 40), rng.randint(3, 19)
        public = {user: name_of(rng) for user in users}
        uses = {user: rng.choice(_USES).replace("Q", str(rng.randint(2, 30))) for user in users}
        names = {user: other if level >= 3 and user == users[-1] else helper for user in users}
        body = (
            f"    total = 0\n    for position, x in enumerate(xs):\n        total += (x * {a} + position * {b}) "
            f"% {c}\n    return total\n"
        )
        before = {
            user: f"def {names[user]}(xs):\n{body}\n\n{_public(public[user], uses[user], names[user])}"
            for user in users
        }
        after = {
            user: f"from {shared} import {helper}\n\n\n{_public(public[user], uses[user], helper)}" for user in users
        }

        def value(user: str, xs: list[int]) -> int:
            total = sum((x * a + position * b) % c for position, x in enumerate(xs))
            return int(eval(uses[user].replace("H(xs)", str(total)), {"xs": xs, "len": len}))

        inputs = [[], [3], *([rng.randint(-30, 60) for _ in range(rng.randint(2, 9))] for _ in range(5))]
        calls = [
            Call(module=user, name=public[user], arguments=(xs,), expected=value(user, xs))
            for user in users
            for xs in inputs
        ]
        calls += [
            Call(
                module=shared, name=helper, arguments=(xs,), expected=sum((x * a + p * b) % c for p, x in enumerate(xs))
            )
            for xs in inputs
        ]
        shapes = [Shape(path=f"{shared}.py", defines=(helper,))]
        shapes += [
            Shape(path=f"{user}.py", defines=(public[user],), lacks=(helper, other), imports=(shared,))
            for user in users
        ]
        note = f" (in {users[-1]}.py the copy is called {other})" if level >= 3 else ""
        commands = [
            written(f"{shared}.py", f"def {helper}(xs):\n{body}"),
            *(written(f"{u}.py", after[u]) for u in users),
        ]
        return Draft(
            secret=f"{a} {b} {c} {sorted(uses.values())}",
            prompt=f"{', '.join(f'{user}.py' for user in users)} each hold a copy of the function {helper}{note}. "
            f"Move it "
            f"to a new module {shared}.py, where it keeps the name {helper}; the other files must import it from "
            f""
            f"there "
            f"and define it no more. Their own functions ({', '.join(public.values())}) must stay where they are "
            f"and do "
            "what they did.",
            files={f"{user}.py": source for user, source in before.items()},
            oracle=(f"cat {users[0]}.py", "\n".join(commands)),
            tests=code_test(calls, shapes=shapes),
            trivial={
                "empty_module": (f": > {shared}.py",),
                "copy_of_a_file": (f"cp {users[0]}.py {shared}.py",),
                "only_an_import": (f"sed -i '1i from {shared} import {helper}' *.py; cp {users[0]}.py {shared}.py",),
                "all_emptied": (f"for f in *.py; do : > $f; done; : > {shared}.py",),
            },
        )


_USES = ("H(xs) + Q", "H(xs) * Q - len(xs)", "Q - H(xs)", "H(xs) // Q", "H(xs) % Q + len(xs)", "len(xs) * Q + H(xs)")
"""``H`` is the copied function, ``Q`` a number."""


def _public(name: str, use: str, helper: str) -> str:
    return f"def {name}(xs):\n    return {use.replace('H(', helper + '(')}\n"

"""Join two CSV files by a key and sum up."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.state_test import says, state_test, unchanged
from longrein.tasks.families.words import FIRST_NAMES, words


class JoinTables:
    """Names to amounts; level 2 sums by name, level 3 also lists what has no partner."""

    name = "join_tables"
    levels = (1, 2, 3)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """The tables are the secret."""
        people, orders = words(rng, 2)
        ids = rng.sample(range(100, 999), rng.randint(8, 12))
        names = dict(zip(ids, rng.sample(FIRST_NAMES, len(ids)), strict=True))
        strangers = rng.sample([n for n in range(100, 999) if n not in names], 3)
        buyers = [rng.choice([*ids[:-2], *strangers]) for _ in range(rng.randint(14, 26))] + strangers[:1] + ids[:1]
        rows = [(rng.randint(1000, 9999), buyer, rng.randint(1, 500)) for buyer in buyers]
        files = {
            f"{people}.csv": "id,name\n" + "".join(f"{key},{name}\n" for key, name in names.items()),
            f"{orders}.csv": "number,id,amount\n" + "".join(f"{n},{key},{amount}\n" for n, key, amount in rows),
        }
        sums: dict[str, int] = {}
        for _n, key, amount in rows:
            if key in names:
                sums[names[key]] = sums.get(names[key], 0) + amount
        lines = [f"{names[key]},{amount}" for _n, key, amount in rows if key in names]
        if level >= 2:
            lines = [f"{name},{total}" for name, total in sorted(sums.items())]
        output = "name,amount\n" + "".join(f"{line}\n" for line in lines)
        asked = [
            f"write joined.csv with the header name,amount and, for each line of {orders}.csv in its order, the "
            f"name that "
            f"{people}.csv has for its id and the amount",
            f"write joined.csv with the header name,amount and a line for each name that has an amount: the name "
            f"and the sum of "
            f"its amounts in {orders}.csv (joined by id), in byte order of the names",
        ][level >= 2]
        extra = (
            f"; and write unknown.txt with the ids of {orders}.csv that {people}.csv does not have, each once, "
            f"the lowest first"
        )
        unknown = sorted({key for _n, key, _amount in rows if key not in names})
        table = "NR == FNR {name[$1] = $2; next} FNR > 1 && $2 in name"
        each = f"awk -F, -v OFS=, '{table} {{print name[$2], $3}}' {people}.csv {orders}.csv"
        total = (
            f"awk -F, -v OFS=, '{table} {{n[name[$2]] += $3}} END {{for (a in n) print a, n[a]}}' {people}.csv "
            f"{orders}.csv | LC_ALL=C sort"
        )
        command = f"(echo name,amount; {total if level >= 2 else each}) > joined.csv"
        if level >= 3:
            command += (
                f"; awk -F, 'NR == FNR {{name[$1]; next}} FNR > 1 && !($2 in name) {{print $2}}' "
                f"{people}.csv {orders}.csv | sort -nu > unknown.txt"
            )
        checks = [says("joined.csv", output), *unchanged(files)]
        checks += [says("unknown.txt", "".join(f"{key}\n" for key in unknown))] if level >= 3 else []
        return Draft(
            secret="".join(files.values()),
            prompt=f"{people}.csv gives each id a name, and {orders}.csv has amounts by id. Lines whose id "
            f"{people}.csv does not have "
            f"do not count. From them, "
            f"{asked}{extra if level >= 3 else ''}.",
            files=files,
            oracle=(f"head -3 {people}.csv {orders}.csv", command),
            tests=state_test(*checks),
            trivial={
                "empty_files": (": > joined.csv; : > unknown.txt",),
                "only_the_header": ("echo name,amount > joined.csv; : > unknown.txt",),
                "copies_the_amounts": (f"cp {orders}.csv joined.csv; cut -d, -f2 {orders}.csv > unknown.txt",),
                "pastes_side_by_side": (f"paste -d, {people}.csv {orders}.csv > joined.csv; : > unknown.txt",),
            },
        )

"""Answer questions about a server's log."""

from __future__ import annotations

import random
from collections import Counter

from longrein.tasks.families.base import Draft
from longrein.tasks.families.state_test import says, state_test, unchanged
from longrein.tasks.families.words import words

Entry = tuple[str, str, str, int, int]
"""Time, address, path, status, bytes."""


class LogAnalysis:
    """Counts by status; level 2 the busiest addresses, level 3 bytes by path in an hour."""

    name = "log_analysis"
    levels = (1, 2, 3)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """The log is the secret."""
        entries = _entries(rng, rng.randint(60, 120))
        names = ("access.log", "access.log.1") if level >= 2 else ("access.log",)
        cut = len(entries) // 3 if level >= 2 else 0
        texts = [
            "".join(_line(entry) for entry in part) for part in ((entries[cut:], entries[:cut]) if cut else (entries,))
        ]
        files: dict[str, str] = dict(zip(names, texts, strict=True))
        asked, answer, command = (_by_status, _busiest, _by_path)[level - 1](rng, entries)
        return Draft(
            secret=texts[0],
            prompt=f"{' and '.join(names)} hold{'s' * (level == 1)} a line for each request: time, address, method, "
            f"path, status, "
            f"bytes. {asked} Write to answer.txt.",
            files=files,
            oracle=("head -3 access.log", command),
            tests=state_test(says("answer.txt", answer), *unchanged(files)),
            trivial={
                "empty_answer": (": > answer.txt",),
                "copies_the_log": ("cp access.log answer.txt",),
                "counts_lines": ("wc -l < access.log > answer.txt",),
                "shows_the_first_line": ("head -1 access.log > answer.txt",),
            },
        )


def _by_status(rng: random.Random, entries: list[Entry]) -> tuple[str, str, str]:
    counts = Counter(entry[3] for entry in entries)
    asked = (
        "For each status that occurs, give a line: the status, a space, and how often it occurs; the lowest "
        "status first."
    )
    command = "awk '{n[$5]++} END {for (s in n) print s, n[s]}' access.log | sort -n > answer.txt"
    return asked, "".join(f"{status} {count}\n" for status, count in sorted(counts.items())), command


def _busiest(rng: random.Random, entries: list[Entry]) -> tuple[str, str, str]:
    top, least = rng.randint(3, 5), rng.choice([400, 500])
    counts = Counter(entry[1] for entry in entries if entry[3] >= least)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:top]
    asked = (
        f"Which addresses have most requests with a status of {least} or more, both files together? Give the first "
        f"{top}, a "
        "line each: the number of such requests, a space, the address; the largest number first, and by address in "
        "byte order "
        "where numbers are equal."
    )
    command = (
        f"cat access.log access.log.1 | awk '$5 >= {least} {{n[$2]++}} END {{for (a in n) print n[a], a}}' | "
        f"LC_ALL=C sort -k1,1nr -k2,2 | head -{top} > answer.txt"
    )
    return asked, "".join(f"{count} {address}\n" for address, count in ordered), command


def _by_path(rng: random.Random, entries: list[Entry]) -> tuple[str, str, str]:
    hour = Counter(entry[0][11:13] for entry in entries).most_common(1)[0][0]
    sums: Counter[str] = Counter()
    for time, _address, path, status, size in entries:
        if time[11:13] == hour and status < 400:
            sums[path.split("?")[0]] += size
    asked = (
        f"Of the requests between {hour}:00:00 and {hour}:59:59 (of any day, both files together) whose status is "
        f"below 400, "
        "sum the bytes by path, without what follows a question mark. Give a line for each path: the path, a space, "
        "the sum; in "
        "byte order of the paths."
    )
    command = (
        f'cat access.log access.log.1 | awk \'substr($1, 12, 2) == "{hour}" && $5 < 400 '
        '{split($4, p, "?"); n[p[1]] += $6} END {for (a in n) print a, n[a]}\' | LC_ALL=C sort > answer.txt'
    )
    return asked, "".join(f"{path} {total}\n" for path, total in sorted(sums.items())), command


def _entries(rng: random.Random, count: int) -> list[Entry]:
    addresses = [".".join(str(rng.randint(1, 250)) for _ in range(4)) for _ in range(9)]
    paths = [f"/{name}" for name in words(rng, 6)]
    hours = rng.sample(range(24), 3)
    made: list[Entry] = []
    for _ in range(count):
        day = f"2026-0{rng.randint(1, 9)}-{rng.randint(10, 28)}"
        time = f"{day}T{rng.choice(hours):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}"
        query = f"?id={rng.randint(1, 99)}" if rng.random() < 0.4 else ""
        status = rng.choice([200, 200, 200, 301, 404, 404, 500, 503, 403])
        made.append((time, rng.choice(addresses), rng.choice(paths) + query, status, rng.randint(100, 9999)))
    return sorted(made)


def _line(entry: Entry) -> str:
    time, address, path, status, size = entry
    return f"{time} {address} GET {path} {status} {size}\n"

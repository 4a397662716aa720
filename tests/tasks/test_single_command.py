"""The claim of docs/tasks.md: a policy that acts once, without reading any output, scores 0 in every family."""

from __future__ import annotations

import pytest

from longrein.tasks.families.registry import SUITES
from longrein.tasks.families.spelled.numbers import WORDS
from longrein.tasks.suite import ProceduralSuite
from longrein.types import Task
from tests.tasks.grading import grade

SPELLED = SUITES["spelled"]
LONGEST_COMMAND_CHARACTERS = 76
"""About 40 tokens of the demo's model with the call around it, the bound of one turn, and then some (docs/tasks.md)."""

# {note} is the file to read, {put} delivers what a command prints to where the task wants it.
ATTEMPTS = (
    "cat {note} {put}",
    "echo 123 {put}",
    "cat {note} | tr -dc 0-9 {put}",
    "grep -o '[0-9]*' {note} {put}",
    "tr wuxg 2468 < {note} {put}",
    "tr -dc wuxg<{note}|tr wuxg 2468 {put}",
    "tr -dc otfsn<{note}|tr otfsn 13579 {put}",
    "sed 's/one/1/;s/two/2/' {note} {put}",
    "echo $(($(cat {note}))) {put}",
    "printf %d $(cat {note}) {put}",
    'date -d "$(cat {note})" +%d {put}',
    "wc -c < {note} {put}",
    "seq 0 999 {put}",
    "echo {{000..999}} {put}",
    "cat * {put}",
    "cat $(cat {note}) {put}",
    "cat [0-9]* {put}",
    "cat $(ls | head -1) {put}",
    "xargs < {note} {put}",
    "expr $(cat {note}) {put}",
    "numfmt --from=auto $(cat {note}) {put}",
    "md5sum {note} {put}",
    "sort {note} | uniq {put}",
    "rev {note} {put}",
    "fold -w1 {note} {put}",
    "bash {note} {put}",
)
FAMILY_ATTEMPTS = {
    "write_number": ("mv note.txt code.txt", "cp [0-9]* code.txt", "tee code.txt < note.txt"),
    "append_number": ("cat note.txt | tee -a list.txt", "seq 0 999 | tee -a list.txt", "sed -i '$r note.txt' list.txt"),
    "make_folder": (
        "mkdir $(cat note.txt)",
        "mkdir {000..999}",
        "mkdir {1..9}{1..9}{1..9}; rmdir [1-4]*",
        "for i in {000..999}; do ln -s . $i; done",
        "mkdir 123",
        "mkdir $(tr wuxg 2468 < note.txt)",
    ),
    "rename_file": (
        "mv box.txt $(cat note.txt)",
        'mv box.txt "$(cat note.txt)"',
        "for i in {000..999}; do cp box.txt $i; done; rm box.txt",
        "tee {000..999} < box.txt; rm box.txt",
        "for i in {000..999}; do ln -s box.txt $i; done",
        "for i in {000..999}; do ln -s ../box.txt $i; done; mv box.txt ..",
        "mv box.txt 123",
        "mv box.txt $(tr wuxg 2468 < note.txt)",
    ),
    "spell_number": (
        "mv code.txt words.txt",
        "fold -w1 code.txt > words.txt",
        "sed 's/1/one/;s/2/two/' code.txt > words.txt",
    ),
    "follow_note": ("cat $(cat note.txt) > code.txt", "cat [0-9]* > code.txt", "cp [0-9]* code.txt"),
}
READS = {"spell_number": "code.txt"}
PUTS = {
    "write_number": "> code.txt",
    "append_number": ">> list.txt",
    "spell_number": "> words.txt",
    "follow_note": "> code.txt",
}
PUTS |= {"rename_file": "| xargs mv box.txt", "make_folder": "| xargs mkdir"}


def attempts(family: str) -> list[str]:
    generic = [form.format(note=READS.get(family, "note.txt"), put=PUTS[family]) for form in ATTEMPTS]
    return [*generic, *FAMILY_ATTEMPTS[family]]


def sample(family: str) -> list[Task]:
    return list(ProceduralSuite(families=(family,)).tasks("test", 2, 11))


@pytest.mark.parametrize("family", SPELLED)
def test_strong_single_commands_score_zero(family: str) -> None:
    solved = [
        (command, task.task_id) for command in attempts(family) for task in sample(family) if grade(task, [command])
    ]
    assert solved == []


@pytest.mark.parametrize("family", SPELLED)
def test_an_attempt_of_this_strength_can_score_where_the_number_is_known(family: str) -> None:
    """The attempts fail for want of the number, not of a way to deliver it."""
    task = sample(family)[0]
    number = task.oracle[-1]
    assert grade(task, [number]) == 1.0


def test_a_table_solves_it_and_is_too_long_for_one_turn() -> None:
    """Honesty: a command that carries the nine words does work. Only the bound on a turn keeps it out."""
    # As far as we can see this is the shortest there is, but for a string of words cut by position (120 characters).
    table = ";".join(f"s/{word}/{digit}/" for digit, word in enumerate(WORDS, 1))
    command = f"sed '{table};s/ //g' note.txt > code.txt"
    task = ProceduralSuite(families=("write_number",)).tasks("test", 1, 7)[0]
    assert grade(task, [command]) == 1.0
    assert len(command) > LONGEST_COMMAND_CHARACTERS


def test_the_attempts_themselves_would_fit_into_a_turn() -> None:
    assert max(len(command) for family in SPELLED for command in attempts(family)) <= LONGEST_COMMAND_CHARACTERS

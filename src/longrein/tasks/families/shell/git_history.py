"""Find something in a repository's history, bring it back, commit it."""

from __future__ import annotations

import hashlib
import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.shell.git_repository import Commit, Tree, repository
from longrein.tasks.families.state_test import Check, says, state_test
from longrein.tasks.families.words import words

_COMMIT = "git -c user.name=me -c user.email=me@example.com commit -q"


class GitHistory:
    """Which commit removed a line; level 2 restores a deleted file and commits it, level 3 moves a branch, too."""

    name = "git_history"
    levels = (1, 2, 3)
    needs = ("git", "python3")

    def draw(self, rng: random.Random, level: int) -> Draft:
        """The history is the secret."""
        names = [f"{name}.txt" for name in words(rng, 4)]
        line, branch = f"{words(rng, 1)[0]} {rng.randint(100, 999)}", words(rng, 1)[0]
        commits, removed_at, lost = _history(rng, names, line)
        made = repository(commits, {branch: 0} if level >= 3 else {})
        parent, last = made.commits[removed_at - 1], made.commits[-1]
        content = commits[removed_at - 1].tree[lost]
        blob = hashlib.sha1(f"blob {len(content)}\0{content}".encode(), usedforsecurity=False).hexdigest()
        find = f"git log --format=%H -S'{line}' | head -1"
        asked = f"Which commit removed the line '{line}'? Write its full id to answer.txt."
        checks: list[Check] = [says("answer.txt", f"{made.commits[removed_at]}\n")]
        command = f"{find} > answer.txt"
        if level >= 2:
            asked = (
                f"A commit of this git repository removed a file that held the line '{line}'. Bring the file back "
                f"as it was "
                "right before, and commit it on main (that file alone, in one commit, any message)."
            )
            checks = [
                _git(["rev-parse", f"main:{lost}"], blob),
                _git(["rev-parse", "main~1"], last),
                _git(["diff-tree", "-r", "--no-commit-id", "--name-status", "main"], f"A\t{lost}"),
                says(lost, content),
            ]
            command = f"c=$({find}); git checkout -q $c~1 -- {lost}; {_COMMIT} -m back {lost}"
        if level >= 3:
            asked += (
                f" Then move the branch {branch} to the commit right before the one that removed it, staying on main."
            )
            checks += [
                _git(["rev-parse", f"refs/heads/{branch}"], parent),
                _git(["symbolic-ref", "HEAD"], "refs/heads/main"),
            ]
            command += f"; git branch -f {branch} $c~1"
        return Draft(
            secret="".join(made.commits),
            prompt=asked,
            files=made.files,
            oracle=("git log --oneline --name-status", command),
            tests=state_test(*checks),
            trivial={
                "empty_answer": (f": > answer.txt; : > {lost}",),
                "the_last_commit": (f"git rev-parse HEAD > answer.txt; git branch -f {branch} HEAD",),
                "file_by_hand": (f"echo '{line}' > {lost}; git add {lost}; {_COMMIT} -m back",),
                "all_commits": ("git log --format=%H > answer.txt",),
            },
        )


def _git(argv: list[str], output: str) -> Check:
    return {"kind": "git", "repository": ".", "argv": argv, "output": output}


def _history(rng: random.Random, names: list[str], line: str) -> tuple[list[Commit], int, str]:
    """Commits, the number of the one that removed the file with the line, and the file."""
    lost = names[-1]
    tree: Tree = {name: _lines(rng) for name in names[:-1]}
    commits = [Commit(message=f"add {', '.join(tree)}", tree=dict(tree))]
    appears, gone = rng.randint(1, 2), rng.randint(4, 6)
    for number in range(1, rng.randint(8, 10)):
        name = rng.choice(names[:-1])
        tree[name] += f"{rng.choice(words(rng, 2))} {rng.randint(1, 99)}\n"
        message = f"change {name}"
        if number == appears:
            tree[lost], message = f"{_lines(rng)}{line}\n{_lines(rng)}", f"add {lost}"
        elif appears < number < gone:
            tree[lost] += f"{words(rng, 1)[0]}\n"
        elif number == gone:
            del tree[lost]
            message = f"tidy up {name}"
        commits.append(Commit(message=message, tree=dict(tree)))
    return commits, gone, lost


def _lines(rng: random.Random) -> str:
    return "".join(f"{' '.join(words(rng, 3))}\n" for _ in range(rng.randint(2, 4)))

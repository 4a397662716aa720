from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.errors import TaskError
from longrein.tasks.families.registry import SUITES
from longrein.tasks.suite import ProceduralSuite, split_of
from longrein.types import Task
from tests.tasks.grading import grade

SPELLED = SUITES["spelled"]
SEEDS = st.integers(0, 2**32)


def secret(task: Task) -> str:
    """What the last command of the oracle brings into the work directory."""
    return task.oracle[-1]


def in_family(family: str, count: int = 12, seed: int = 0) -> list[Task]:
    return list(ProceduralSuite(families=(family,)).tasks("test", count, seed))


@pytest.mark.parametrize("family", SPELLED)
class TestEveryFamily:
    def test_oracle_scores_one_and_no_op_scores_zero(self, family: str) -> None:
        for task in in_family(family):
            assert grade(task, task.oracle) == 1.0
            assert grade(task, ()) == 0.0

    def test_every_command_of_the_oracle_is_needed(self, family: str) -> None:
        task = in_family(family, 1)[0]
        assert grade(task, task.oracle[:-1]) == 0.0

    def test_a_solution_of_another_task_scores_zero(self, family: str) -> None:
        one, other = in_family(family, 2)
        assert grade(one, other.oracle) == 0.0

    def test_the_prompt_says_nothing_of_the_secret(self, family: str) -> None:
        assert len({task.prompt for task in in_family(family)}) == 1

    def test_writing_the_reward_or_the_tests_does_not_help(self, family: str) -> None:
        forged = (
            "mkdir -p logs/verifier tests; echo 1 | tee reward.txt logs/verifier/reward.txt; echo 'exit 0' > test.sh"
        )
        assert grade(in_family(family, 1)[0], (forged,)) == 0.0

    def test_odd_leftovers_score_zero_instead_of_crashing_the_test(self, family: str) -> None:
        task = in_family(family, 1)[0]
        made = "for f in code.txt list.txt words.txt; do rm -rf $f; mkdir $f; done; printf '\\0\\377' > 000"
        assert grade(task, (made,)) == 0.0


@settings(deadline=None, max_examples=25)
@given(family=st.sampled_from(sorted(SPELLED)), train_seed=SEEDS, test_seed=SEEDS)
def test_train_and_test_share_no_secret_for_any_pair_of_seeds(family: str, train_seed: int, test_seed: int) -> None:
    suite = ProceduralSuite(families=(family,))
    train = {secret(task) for task in suite.tasks("train", 200, train_seed)}
    test = {secret(task) for task in suite.tasks("test", 100, test_seed)}
    assert not train & test


@settings(deadline=None, max_examples=25)
@given(seed=SEEDS, short=st.integers(0, 30), more=st.integers(0, 30), split=st.sampled_from(["train", "test"]))
def test_same_seed_same_tasks_and_longer_lists_begin_alike(seed: int, short: int, more: int, split: str) -> None:
    suite = ProceduralSuite(families=("spelled",))
    longer = suite.tasks(split, short + more, seed)  # pyright: ignore[reportArgumentType]
    assert suite.tasks(split, short, seed) == longer[:short]  # pyright: ignore[reportArgumentType]
    assert len({task.task_id for task in longer}) == len(longer)


def test_families_take_turns() -> None:
    tasks = ProceduralSuite(families=("rename_file", "write_number")).tasks("train", 5, 0)
    assert [task.metadata["family"] for task in tasks] == ["rename_file", "write_number"] * 2 + ["rename_file"]


def test_secrets_repeat_only_when_none_is_left() -> None:
    tasks = ProceduralSuite(families=("write_number",)).tasks("test", 400, 0)
    first_repeat = next(n for n, task in enumerate(tasks) if secret(task) in {secret(t) for t in tasks[:n]})
    assert first_repeat == len({secret(task) for task in tasks}) > 100


def test_another_seed_gives_other_tasks() -> None:
    suite = ProceduralSuite(families=("write_number",))
    assert [t.oracle for t in suite.tasks("train", 5, 0)] != [t.oracle for t in suite.tasks("train", 5, 1)]


def test_a_fair_share_of_secrets_is_held_out() -> None:
    held_out = sum(split_of("write_number", f"{number:03d}") == "test" for number in range(1000))
    assert 150 < held_out < 350


def test_unknown_families_are_named_with_the_known_ones() -> None:
    with pytest.raises(TaskError, match=r"'wirte_number', 'x'; known: write_number, rename_file"):
        ProceduralSuite(families=("wirte_number", "write_number", "x")).tasks("train", 1, 0)

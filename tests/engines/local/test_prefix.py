"""The prefix cache: what it shares, what it keeps to itself, and that it changes no bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longrein.engines.base import EngineRequest
from longrein.engines.local.kv import KvLayout, LayerShape, SavedKv
from longrein.engines.local.model import LocalModel
from longrein.engines.local.prefix import BLOCK_TOKENS, ROOT, Block, Chunk, Conversation, PrefixStore, Span
from longrein.engines.local.row import Ticket
from longrein.types import I32, Completion, Sampling
from tests.engines.local.reference import Driver, completion, forward_logprobs, random_ids, request
from tests.engines.local.weights import changed, restored

_SETTINGS = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


def _turn(conversation_id: str, prompt: I32, *, seed: int = 0, max_tokens: int = 6) -> EngineRequest:
    return request(conversation_id, prompt, seed=seed, max_tokens=max_tokens)


class _Session:
    """A conversation of several turns, one request at a time."""

    def __init__(self, name: str, system_tokens: int, task: int, seed: int) -> None:
        self.name = name
        self.prompt = np.concatenate([random_ids(1000, system_tokens), random_ids(task, 30 + task)])
        self._random = np.random.default_rng(seed)
        self.seed = seed

    def play(self, driver: Driver, turns: int) -> list[Completion]:
        heard: list[Completion] = []
        for turn in range(turns):
            (one,) = driver.run(_turn(self.name, self.prompt, seed=self.seed + turn))
            heard.append(one)
            tool = self._random.integers(0, 264, 1 + self.seed * 7, dtype=np.int32)
            self.prompt = np.concatenate([self.prompt, one.token_ids, tool])
        return heard


@_SETTINGS
@given(
    family=st.sampled_from(["llama", "qwen3", "phi"]),
    system_tokens=st.integers(0, 200),
    earlier=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 3)), max_size=4),
    cache_tokens=st.sampled_from([0, 300, 32768]),
)
def test_a_warm_cache_gives_the_bits_of_a_cold_one(
    model_of: Callable[[str], LocalModel],
    family: str,
    system_tokens: int,
    earlier: list[tuple[int, int, int]],
    cache_tokens: int,
) -> None:
    """One request in flight: what others did before changes nothing, so a resumed run ends as an unbroken one."""
    model = model_of(family)
    warm = Driver(model, cache_tokens=cache_tokens)
    for number, (task, seed, turns) in enumerate(earlier):
        _Session(f"earlier{number}", system_tokens, task, seed).play(warm, turns)
    cold = Driver(model, cache_tokens=cache_tokens)
    heard = [_Session("s", system_tokens, 2, 3).play(driver, 3) for driver in (warm, cold)]
    for one, other in zip(*heard, strict=True):
        assert one.token_ids.tobytes() == other.token_ids.tobytes()
        assert one.logprobs.tobytes() == other.logprobs.tobytes()


class _World:
    """An engine in which anything may happen at any time, and what it has answered under the weights it has."""

    def __init__(self, model: LocalModel, data: st.DataObject, stale_cache: str) -> None:
        self.model = model
        self.driver = Driver(
            model,
            max_batch=data.draw(st.integers(1, 5)),
            cache_tokens=data.draw(st.sampled_from([0, 150, 700, 32768])),
            stale_cache=stale_cache,
        )
        self.waiting: dict[Ticket, EngineRequest] = {}
        self._draw = data.draw
        self._prompts: dict[str, I32] = {}
        self._answered: list[tuple[EngineRequest, Completion]] = []
        self._policy_version = 0

    def submit(self) -> None:
        name = self._draw(st.sampled_from("abcde"))
        if name not in self._prompts:
            shared = random_ids(1, self._draw(st.sampled_from([0, 70, 150])))
            own = random_ids(self._draw(st.integers(4, 6)), self._draw(st.integers(1, 90)))
            self._prompts[name] = np.concatenate([shared, own])
        wanted = _turn(name, self._prompts[name], max_tokens=self._draw(st.integers(1, 6)))
        self.waiting[self.driver.submit(wanted)] = wanted

    def step(self) -> None:
        for _ in range(self._draw(st.sampled_from([1, 6]))):
            self.driver.scheduler.step()

    def cancel(self) -> None:
        if self.waiting:
            ticket = self._draw(st.sampled_from(sorted(self.waiting, key=lambda one: one.call)))
            self.driver.scheduler.cancel(ticket)
            del self.waiting[ticket]

    def forget(self) -> None:
        self.driver.scheduler.forget(self._draw(st.sampled_from("abcde")))

    def swap(self) -> None:
        self.check()
        self._policy_version += 1
        changed(self.model, self._policy_version)
        self.driver.scheduler.swap(self._policy_version)

    def finish(self) -> None:
        while not self.driver.scheduler.idle:
            self.driver.scheduler.step()
            self.hear()
        self.check()

    def hear(self) -> None:
        for answer in self.driver.scheduler.take_answers():
            wanted, result = self.waiting.pop(answer.ticket), completion(answer.reply)
            self._answered.append((wanted, result))
            # The next turn looks back on what was sampled.
            next_prompt = np.concatenate([wanted.prompt_ids, result.token_ids, random_ids(result.token_ids.size, 5)])
            self._prompts[wanted.conversation_id] = next_prompt

    def check(self) -> None:
        """A completion whose stamp says one version has exactly that version's logprobs."""
        for wanted, result in self._answered:
            assert result.max_policy_version == self._policy_version
            if result.min_policy_version == self._policy_version:
                expected = forward_logprobs(self.model.module, wanted.prompt_ids, result.token_ids)
                np.testing.assert_allclose(result.logprobs, expected, atol=1e-4)
        self._answered.clear()


_ACTIONS = [_World.submit, _World.submit, _World.step, _World.step, _World.cancel, _World.forget, _World.swap]


@settings(_SETTINGS, max_examples=60)
@given(
    data=st.data(),
    family=st.sampled_from(["llama", "qwen2", "gpt_neox"]),
    stale_cache=st.sampled_from(["recompute", "keep"]),
)
def test_logprobs_hold_whatever_happens(
    model_of: Callable[[str], LocalModel], data: st.DataObject, family: str, stale_cache: str
) -> None:
    """Requests come, are cancelled and end in any order, caches overflow, and weights change in between."""
    model = model_of(family)
    with restored(model):
        world = _World(model, data, stale_cache)
        for action in data.draw(st.lists(st.sampled_from(_ACTIONS), min_size=5, max_size=25)):
            action(world)
            world.hear()
        world.finish()
        assert not world.waiting


def test_a_turn_over_kept_kv_counts_as_sampled_over_the_older_weights(llama: LocalModel) -> None:
    with restored(llama):
        driver = Driver(llama, stale_cache="keep")
        prompt = random_ids(0, 150)
        (first,) = driver.run(_turn("c", prompt))
        changed(llama, 3)
        driver.scheduler.swap(3)
        (second,) = driver.run(_turn("c", np.concatenate([prompt, first.token_ids, random_ids(1, 5)])))
        (other,) = driver.run(_turn("d", prompt))
    assert (second.prefill_tokens, second.min_policy_version, second.max_policy_version) == (5, 0, 3)
    # Another conversation gets nothing of the old weights.
    assert (other.prefill_tokens, other.min_policy_version) == (150, 3)


def test_siblings_that_come_together_compute_their_prompt_once(llama: LocalModel) -> None:
    prompt = random_ids(0, 300)
    siblings = Driver(llama).run(*(_turn(f"c{i}", prompt, seed=i) for i in range(8)))
    assert [one.prefill_tokens for one in siblings] == [300, *[1] * 7]
    tasks = [np.concatenate([prompt, random_ids(9 + i, 20)]) for i in range(4)]
    others = Driver(llama).run(*(_turn(f"c{i}", task) for i, task in enumerate(tasks)))
    assert [one.prefill_tokens for one in others] == [320, *[320 - 256] * 3]


@pytest.mark.parametrize("family", ["llama", "llama by torch"])
def test_rows_that_share_nothing_are_not_read_as_one(model_of: Callable[[str], LocalModel], family: str) -> None:
    llama = model_of(family)
    prompts = [random_ids(seed, 150) for seed in (0, 1, 0, 1)]
    for wanted in (prompts[:2], prompts[::2], prompts):
        heard = Driver(llama).run(*(_turn(f"c{i}", prompt, seed=i) for i, prompt in enumerate(wanted)))
        for prompt, one in zip(wanted, heard, strict=True):
            expected = forward_logprobs(llama.module, prompt, one.token_ids)
            np.testing.assert_allclose(one.logprobs, expected, atol=1e-4)


def test_without_a_cache_siblings_still_get_what_is_theirs(llama: LocalModel) -> None:
    prompt = random_ids(0, 300)
    for one in Driver(llama, cache_tokens=0).run(*(_turn(f"c{i}", prompt, seed=i) for i in range(3))):
        assert one.prefill_tokens == 300
        expected = forward_logprobs(llama.module, prompt, one.token_ids)
        np.testing.assert_allclose(one.logprobs, expected, atol=1e-4)


def test_requests_wait_for_room_for_their_kv(llama: LocalModel) -> None:
    driver = Driver(llama, batch_tokens=1024)
    wanted = [_turn(f"c{i}", random_ids(i, 300), max_tokens=5) for i in range(4)]
    tickets = [driver.submit(one) for one in wanted]
    most = 0
    while not driver.scheduler.idle:
        driver.scheduler.step()
        most = max(most, driver.scheduler.begun)
    assert most == 2
    replies = {answer.ticket: answer.reply for answer in driver.scheduler.take_answers()}
    assert [completion(replies[ticket]).token_ids.size for ticket in tickets] == [5] * 4


# The store by itself, against a plain account of what it holds.

_LAYOUT = KvLayout(layers=(LayerShape(key_heads=1, key_size=1, value_heads=1, value_size=1),), dtype=torch.float32)


def _kv(token_ids: I32) -> SavedKv:
    values = torch.as_tensor(token_ids.astype(np.float32)).view(1, -1, 1)
    return SavedKv(keys=(values,), values=(values,))


def _fill(store: PrefixStore, token_ids: I32) -> list[Block]:
    blocks = store.follow(ROOT, token_ids)
    number = blocks[-1].number if blocks else ROOT
    for start in range(BLOCK_TOKENS * len(blocks), token_ids.size, BLOCK_TOKENS):
        part = token_ids[start : start + BLOCK_TOKENS]
        blocks.append(store.publish(number, part, _kv(part)))
        number = blocks[-1].number
    return blocks


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.integers(0, 700),
    actions=st.lists(
        st.tuples(st.sampled_from(["fill", "talk", "forget", "share nothing"]), st.integers(0, 3), st.integers(1, 300)),
        max_size=20,
    ),
)
def test_the_store_stays_within_its_tokens_and_gives_back_what_was_put(
    capacity: int, actions: list[tuple[str, int, int]]
) -> None:
    store = PrefixStore(capacity)
    for action, number, size in actions:
        prompt = np.concatenate([np.arange(100, dtype=np.int32), random_ids(number, size)])
        match action:
            case "fill":
                _fill(store, prompt)
            case "talk":
                blocks = _fill(store, prompt)
                own = random_ids(size, 7)
                spans = [Span(chunk=block.chunk, length=block.chunk.size) for block in blocks]
                store.put(
                    Conversation(
                        conversation_id=str(number),
                        token_ids=np.concatenate([prompt, own]),
                        spans=(*spans, Span(chunk=Chunk(_kv(own), own.size), length=own.size)),
                        block_tokens=prompt.size,
                        policy_version=size,
                    )
                )
                known = store.resume(str(number), np.concatenate([prompt, own[:3]]))
                assert known.length in (0, prompt.size + 3)
                assert known.policy_version == (size if known.length else 0)
                _assert_holds(known.spans, np.concatenate([prompt, own])[: known.length])
            case "forget":
                store.forget(str(number))
                assert store.resume(str(number), prompt).length == 0
            case _:
                store.drop_blocks()
                assert not store.follow(ROOT, prompt)
        held = [Span(chunk=block.chunk, length=block.chunk.size) for block in store.follow(ROOT, prompt)]
        _assert_holds(held, prompt[: sum(span.length for span in held)])
        assert store.tokens <= capacity
    store.clear()
    assert store.tokens == 0


def _assert_holds(spans: list[Span] | tuple[Span, ...], token_ids: I32) -> None:
    kept = [span.chunk.kv.keys[0][0, : span.length, 0] for span in spans]
    assert (torch.cat(kept).tolist() if kept else []) == token_ids.tolist()


def test_what_is_used_outlives_what_is_not() -> None:
    store = PrefixStore(5 * BLOCK_TOKENS)
    first, second = random_ids(1, 2 * BLOCK_TOKENS), random_ids(2, 2 * BLOCK_TOKENS)
    _fill(store, first)
    _fill(store, second)
    store.follow(ROOT, second)
    store.follow(ROOT, first)
    _fill(store, random_ids(3, 2 * BLOCK_TOKENS))
    assert len(store.follow(ROOT, first)) == 2
    # The second block went before the one it follows upon.
    assert len(store.follow(ROOT, second)) == 1


def test_truncated_sampling_of_a_batch_stays_within_its_rule(llama: LocalModel) -> None:
    prompt = random_ids(0, 20)
    rules = [Sampling(max_tokens=5, top_k=1, seed=0), Sampling(max_tokens=5, seed=0)]
    requests = [
        EngineRequest(request_id=str(i), conversation_id=str(i), prompt_ids=prompt, sampling=rule)
        for i, rule in enumerate(rules)
    ]
    greedy, _free = Driver(llama).run(*requests)
    assert greedy.logprobs.tolist() == pytest.approx([0.0] * 5, abs=1e-6)

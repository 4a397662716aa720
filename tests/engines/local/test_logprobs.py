"""What the engine reports of a token is what the trainer computes, whatever was batched or cached."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longrein.engines.local.model import LocalModel
from tests.engines.local.reference import Driver, forward_logprobs, ids, random_ids, request

# The first seven by the fused pass, the others by the library's.
FAMILIES = ["llama", "llama by torch", "qwen2", "qwen3", "qwen3 by torch", "phi3", "gemma", "gpt_neox", "phi"]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    family=st.sampled_from(FAMILIES),
    prompt_sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    shared=st.integers(0, 30),
    max_tokens=st.lists(st.integers(1, 9), min_size=6, max_size=6),
    temperature=st.sampled_from([0.4, 1.0, 1.6]),
    turns=st.integers(1, 3),
    max_batch=st.integers(1, 4),
    cache_tokens=st.sampled_from([0, 100, 10_000]),
)
def test_logprobs_are_the_trainers(  # noqa: PLR0917
    model_of: Callable[[str], LocalModel],
    family: str,
    prompt_sizes: list[int],
    shared: int,
    max_tokens: list[int],
    temperature: float,
    turns: int,
    max_batch: int,
    cache_tokens: int,
) -> None:
    model = model_of(family)
    driver = Driver(model, max_batch=max_batch, cache_tokens=cache_tokens)
    system = random_ids(99, shared)
    prompts = [np.concatenate([system, random_ids(i, size)]) for i, size in enumerate(prompt_sizes)]
    for turn in range(turns):
        completions = driver.run(
            *(
                request(f"c{i}", prompt, max_tokens=max_tokens[i], temperature=temperature, seed=turn)
                for i, prompt in enumerate(prompts)
            )
        )
        for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            expected = forward_logprobs(model.module, prompt, completion.token_ids, temperature)
            np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
            assert completion.token_ids.size == max_tokens[i]
            prompts[i] = np.concatenate([prompt, completion.token_ids, random_ids(turn * 10 + i, 1 + i)])


def test_the_fused_pass_is_used_where_it_agrees(model_of: Callable[[str], LocalModel]) -> None:
    ways = {family: model_of(family).forward.name for family in [*FAMILIES, "mistral"]}
    fused = {family for family, way in ways.items() if way == "fused"}
    by_torch = {"llama by torch", "qwen3 by torch"}
    assert fused == {"llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", *by_torch}


@pytest.mark.parametrize("short_tokens", [1, 2, 30])
def test_a_prompt_prefilled_in_pieces_between_other_requests(llama: LocalModel, short_tokens: int) -> None:
    """Also when another request leaves the batch between two pieces."""
    driver = Driver(llama)
    running = driver.submit(request("short", ids(range(5)), max_tokens=short_tokens))
    driver.scheduler.step()
    long = driver.submit(request("long", random_ids(1, 900), max_tokens=5))
    another = driver.submit(request("another", random_ids(2, 600), max_tokens=5))
    replies = driver.finish()
    for ticket, prompt in ((running, ids(range(5))), (long, random_ids(1, 900)), (another, random_ids(2, 600))):
        reply = replies[ticket]
        tokens = np.frombuffer(reply.token_ids, dtype=np.int32)
        logprobs = np.frombuffer(reply.logprobs, dtype=np.float32)
        np.testing.assert_allclose(logprobs, forward_logprobs(llama.module, prompt, tokens), atol=1e-4)


def test_the_second_turn_prefills_only_its_new_tokens(llama: LocalModel) -> None:
    driver = Driver(llama)
    prompt = random_ids(0, 50)
    (first,) = driver.run(request("c", prompt, max_tokens=12))
    new = random_ids(1, 7)
    (second,) = driver.run(request("c", np.concatenate([prompt, first.token_ids, new]), max_tokens=3))
    assert first.prefill_tokens == prompt.size
    assert second.prefill_tokens == new.size


def test_a_second_turn_that_comes_at_once_still_prefills_only_its_new_tokens(llama: LocalModel) -> None:
    driver = Driver(llama)
    prompt = random_ids(0, 20)
    driver.submit(request("c", prompt, max_tokens=4))
    answers = []
    while not answers:
        driver.scheduler.step()
        answers = driver.scheduler.take_answers()
    sampled = np.frombuffer(answers[0].reply.token_ids, dtype=np.int32)
    new = random_ids(1, 7)
    (second,) = driver.run(request("c", np.concatenate([prompt, sampled, new])))
    assert second.prefill_tokens == new.size


def test_siblings_prefill_their_common_prompt_once(llama: LocalModel) -> None:
    driver = Driver(llama)
    prompt = random_ids(0, 60)
    siblings = driver.run(*(request(f"c{i}", prompt, seed=i) for i in range(6)))
    assert [sibling.prefill_tokens for sibling in siblings] == [60, 1, 1, 1, 1, 1]
    assert len({sibling.token_ids.tobytes() for sibling in siblings}) == 6


def test_another_conversation_with_the_same_system_prompt_reuses_it(llama: LocalModel) -> None:
    driver = Driver(llama)
    system = random_ids(0, 140)
    driver.run(request("a", np.concatenate([system, ids([1, 2, 3])])))
    # Its row is where this one's was.
    driver.run(request("in between", random_ids(7, 150)))
    prompt = np.concatenate([system, ids([4, 5])])
    (other,) = driver.run(request("b", prompt))
    # In whole blocks of 64 tokens.
    assert other.prefill_tokens == 142 - 128
    np.testing.assert_allclose(other.logprobs, forward_logprobs(llama.module, prompt, other.token_ids), atol=1e-4)


def test_a_forgotten_conversation_is_prefilled_anew(llama: LocalModel) -> None:
    driver = Driver(llama)
    prompt = random_ids(0, 40)
    (first,) = driver.run(request("a", prompt))
    driver.scheduler.forget("a")
    (again,) = driver.run(request("a", np.concatenate([prompt, first.token_ids, ids([1])])))
    assert again.prefill_tokens == 49


def test_the_least_recently_used_conversation_is_evicted(llama: LocalModel) -> None:
    driver = Driver(llama, cache_tokens=130)
    for name, seed in (("a", 0), ("b", 1), ("a", 0), ("c", 2)):
        driver.run(request(name, random_ids(seed, 40)))
    prefills = [
        driver.run(request(name, random_ids(seed, 40)))[0].prefill_tokens for name, seed in (("a", 0), ("b", 1))
    ]
    assert prefills == [1, 40]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_same_seed_samples_the_same_tokens(llama: LocalModel, temperature: float) -> None:
    wanted = request("c", random_ids(0, 30), seed=5, temperature=temperature, max_tokens=20)
    (one,), (two,) = Driver(llama).run(wanted), Driver(llama).run(wanted)
    (other,) = Driver(llama).run(request("c", random_ids(0, 30), seed=6, temperature=temperature, max_tokens=20))
    assert one.token_ids.tolist() == two.token_ids.tolist()
    assert (one.token_ids.tolist() == other.token_ids.tolist()) == (temperature == 0)


def test_requests_without_a_seed_differ_but_repeat_with_the_engines(llama: LocalModel) -> None:
    wanted = [request(f"c{i}", random_ids(0, 30), seed=None) for i in range(2)]
    one, two = Driver(llama, seed=3).run(*wanted)
    again, _ = Driver(llama, seed=3).run(*wanted)
    assert one.token_ids.tolist() != two.token_ids.tolist()
    assert one.token_ids.tolist() == again.token_ids.tolist()

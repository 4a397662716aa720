"""New weights between two decode steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from longrein.engines.base import EngineRequest
from longrein.engines.local.model import LocalModel
from longrein.types import Completion
from tests.engines.local.reference import Driver, completion, forward_logprobs, random_ids, request
from tests.engines.local.weights import changed, restored


@pytest.fixture(autouse=True)
def _old_weights_back(llama: LocalModel) -> Iterator[None]:
    with restored(llama):
        yield


def _change_weights(driver: Driver, policy_version: int) -> None:
    changed(driver.model, policy_version)
    driver.scheduler.swap(policy_version)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(steps=st.integers(0, 8), prompt_sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4))
@example(steps=1, prompt_sizes=[700])
@example(steps=2, prompt_sizes=[20, 30])
def test_what_only_the_new_weights_sampled_has_their_logprobs(
    llama: LocalModel, steps: int, prompt_sizes: list[int]
) -> None:
    """Whatever was parked, waiting, half prefilled or running when the weights changed."""
    with restored(llama):
        driver = Driver(llama, max_batch=4)
        parked = request("parked", random_ids(50, 30), max_tokens=4)
        (before,) = driver.run(parked)
        crossing = [request(f"c{i}", random_ids(i, size), max_tokens=5) for i, size in enumerate(prompt_sizes)]
        tickets = [driver.submit(one) for one in crossing]
        for _ in range(steps):
            driver.scheduler.step()
        _change_weights(driver, 1)
        fresh = [request(f"sibling{i}", one.prompt_ids, max_tokens=5, seed=1) for i, one in enumerate(crossing)]
        fresh.append(_next_turn(parked, before))
        fresh_tickets = [driver.submit(one) for one in fresh]
        replies = driver.finish()
        crossed = [completion(replies[ticket]) for ticket in tickets]
        for wanted, result in zip(crossing, crossed, strict=True):
            assert 0 <= result.min_policy_version <= result.max_policy_version <= 1
            if result.min_policy_version == 1:
                _assert_of_these_weights(llama, wanted, result)
        for wanted, ticket in zip(fresh, fresh_tickets, strict=True):
            _assert_of_these_weights(llama, wanted, completion(replies[ticket]))
        later = [_next_turn(wanted, result) for wanted, result in zip(crossing, crossed, strict=True)]
        for wanted, result in zip(later, driver.run(*later), strict=True):
            _assert_of_these_weights(llama, wanted, result)


def _next_turn(wanted: EngineRequest, result: Completion) -> EngineRequest:
    prompt = np.concatenate([wanted.prompt_ids, result.token_ids, random_ids(51, 3)])
    return request(wanted.conversation_id, prompt, max_tokens=5)


def _assert_of_these_weights(model: LocalModel, wanted: EngineRequest, result: Completion) -> None:
    assert (result.min_policy_version, result.max_policy_version) == (1, 1)
    expected = forward_logprobs(model.module, wanted.prompt_ids, result.token_ids)
    np.testing.assert_allclose(result.logprobs, expected, atol=1e-4)


def test_a_running_request_goes_on_and_carries_both_versions(llama: LocalModel) -> None:
    driver = Driver(llama)
    prompt = random_ids(0, 20)
    ticket = driver.submit(request("c", prompt, max_tokens=10))
    for _ in range(5):  # one for the prompt
        driver.scheduler.step()
    old = {name: tensor.clone() for name, tensor in llama.module.named_parameters()}
    _change_weights(driver, 7)
    result = completion(driver.finish()[ticket])
    assert (result.min_policy_version, result.max_policy_version) == (0, 7)
    with torch.no_grad():
        for name, tensor in llama.module.named_parameters():
            tensor.copy_(old[name])
    before = forward_logprobs(llama.module, prompt, result.token_ids)
    np.testing.assert_allclose(result.logprobs[:4], before[:4], atol=1e-4)
    assert not np.allclose(result.logprobs[4:], before[4:], atol=1e-4)


@pytest.mark.parametrize(("stale_cache", "prefilled"), [("recompute", 36), ("keep", 2)])
def test_idle_conversations_keep_their_kv_only_if_asked_to(llama: LocalModel, stale_cache: str, prefilled: int) -> None:
    driver = Driver(llama, stale_cache=stale_cache)
    (first,) = driver.run(request("c", random_ids(0, 30), max_tokens=4))
    _change_weights(driver, 1)
    (second,) = driver.run(request("c", np.concatenate([random_ids(0, 30), first.token_ids, random_ids(1, 2)])))
    assert second.prefill_tokens == prefilled


def test_weights_that_are_not_finite_fail_the_request_and_the_next_ones_recover(llama: LocalModel) -> None:
    driver = Driver(llama)
    prompt = random_ids(0, 10)
    with restored(llama):
        with torch.no_grad():
            next(llama.module.parameters()).fill_(float("nan"))
        driver.scheduler.swap(1)
        tickets = [driver.submit(request(f"c{i}", prompt, temperature=float(i))) for i in range(2)]
        replies = driver.finish()
    assert all("not finite" in replies[ticket].message for ticket in tickets)
    driver.scheduler.swap(2)
    (fine,) = driver.run(request("c", prompt))
    np.testing.assert_allclose(fine.logprobs, forward_logprobs(llama.module, prompt, fine.token_ids), atol=1e-4)

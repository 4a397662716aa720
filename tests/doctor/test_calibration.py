"""The statistics behind the checks of logprobs: honest draws never complain, whatever the distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.doctor.alignment import compare, judged
from longrein.doctor.calibration import frequencies, mass, tempering
from longrein.doctor.draws import Draws
from longrein.doctor.logprobs import TOO_FAR
from tests.doctor.liars import log_softmax

DRAWS = 256


def drawn(logits: np.ndarray, temperature: float, seed: int, told: np.ndarray | None = None) -> Draws:
    """Draws of a softmax; ``told``: logprobs reported in place of its own."""
    honest = log_softmax(logits / temperature)
    tokens = np.random.default_rng(seed).choice(logits.size, DRAWS, p=np.exp(honest))
    reported = honest if told is None else told
    return Draws(
        temperature=temperature, token_ids=tokens.astype(np.int32), logprobs=reported[tokens].astype(np.float32)
    )


LOGITS = st.builds(
    lambda seed, size, width: np.random.default_rng(seed).normal(0, width, size),
    st.integers(0, 2**31),
    st.sampled_from([5, 264, 20_000]),
    st.sampled_from([0.2, 1.0, 3.0, 8.0]),
)


@settings(max_examples=60, deadline=None)
@given(LOGITS, st.sampled_from([0.25, 0.5, 1.0, 1.5]), st.integers(0, 2**31))
def test_honest_draws_never_complain(logits: np.ndarray, temperature: float, seed: int) -> None:
    colder, hotter = drawn(logits, temperature, seed), drawn(logits, 2 * temperature, seed + 1)
    found = frequencies(colder)
    assert max(found.z, found.unseen_z) < TOO_FAR
    assert found.mass <= 1 + 1e-4
    assert not mass(colder, hotter).too_much
    ratio = tempering(colder, hotter)
    assert not ratio.tells or ratio.slope == pytest.approx(ratio.expected, rel=0.01)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.5, 0.7, 1.5, 2.0]))
def test_untempered_logprobs_have_another_ratio(seed: int, temperature: float) -> None:
    logits = np.random.default_rng(seed).normal(0, 2, 264)
    plain = log_softmax(logits)
    pair = sorted(
        (drawn(logits, 1.0, seed), drawn(logits, temperature, seed + 1, told=plain)), key=lambda d: d.temperature
    )
    ratio = tempering(*pair)
    assert ratio.tells
    assert ratio.slope == pytest.approx(1.0, abs=0.01)
    assert abs(ratio.slope / ratio.expected - 1) > 0.2


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 10))
def test_a_cut_tail_with_logprobs_of_all_is_seen_in_the_frequencies(seed: int, kept: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 1, 500)
    cut = np.where(logits >= np.sort(logits)[-kept], logits, -np.inf)
    found = frequencies(drawn(cut, 1.0, seed, told=log_softmax(logits)))
    assert max(found.z, found.unseen_z) > TOO_FAR


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.8, 0.9, 0.95]))
def test_a_cut_tail_made_to_add_up_is_seen_in_the_sum(seed: int, top_p: float) -> None:
    """As nucleus sampling does it (arXiv 1904.09751), at each temperature anew."""
    logits = np.sort(np.random.default_rng(seed).normal(0, 3, 500))[::-1]

    def nucleus(temperature: float) -> np.ndarray:
        likely = np.exp(log_softmax(logits / temperature))
        return np.where(np.cumsum(likely) - likely < top_p, logits, -np.inf)

    pairs = [(t, drawn(nucleus(t), t, seed), drawn(nucleus(2 * t), 2 * t, seed + 1)) for t in (0.5, 1.0)]
    assert any(mass(colder, hotter).too_much for _, colder, hotter in pairs)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([-1, 0, 1]))
def test_alignment_tells_a_shift_by_its_sign(seed: int, shift: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 50, 12).astype(np.int32)
    own = np.array([-0.3, -1.1, -2.0] * 4) - rng.uniform(0, 0.2, 12)
    tables = [{int(token): float(logprob)} for token, logprob in zip(tokens, own, strict=True)]
    verdict = judged(compare(tokens, np.roll(own, shift).astype(np.float32), tables))
    if shift:
        assert verdict.status == "fail"
        assert f"shifted by {shift:+d}" in verdict.seen
    else:
        assert verdict.status == "pass"

"""Spans tell of every token which weights sampled it, whenever those got their name."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.serve.versions import VersionLabels


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["token", "add", "name"]), st.integers(0, 99)), max_size=60),
)
def test_spans_are_what_each_token_was_sampled_with(steps: list[tuple[str, int]]) -> None:
    labels, versions, names = VersionLabels(), list[int](), {0: "default"}
    for kind, number in steps:
        if kind == "token":
            versions.append(labels.policy_version)
        elif kind == "add":
            labels.add()
            names[labels.policy_version] = labels.label
        else:
            labels.rename(f"w{number}")
            names[labels.policy_version] = f"w{number}"
    spans = labels.spans(versions)
    assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])][: len(spans)]
    assert all(versions[span.start - 1] != versions[span.start] for span in spans[1:]), "one span a run"
    told = [span.version for span in spans for _ in range(span.start, span.end)]
    assert told == [names[version] for version in versions]


def test_unnamed_weights_have_the_next_name() -> None:
    labels = VersionLabels()
    labels.add()
    assert labels.label == "default+1"
    labels.rename("9")
    labels.add()
    assert labels.label == "10"


def test_weights_that_sample_before_their_owner_hears_of_it_have_the_next_name_too() -> None:
    labels = VersionLabels()
    labels.rename("9")
    assert [span.version for span in labels.spans([0, 1])] == ["9", "10"]
    labels.add()
    assert [span.version for span in labels.spans([0, 1])] == ["9", "10"]

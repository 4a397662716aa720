"""Which symlinks of a work directory stay inside it, by comparison with what the kernel does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longrein.sandboxes.base import WorkFile, WorkTree
from longrein.sandboxes.links import without_outside_links


def kept(links: dict[str, str], workdir: str = "/workdir") -> set[str]:
    return set(without_outside_links(WorkTree(symlinks=links, folders=("d", "d/e")), workdir).symlinks)


@pytest.mark.parametrize("target", ["a", "d/../a", "./a", "/workdir/a", "/workdir", ".", "missing/x"])
def test_links_that_stay_inside_are_kept(target: str) -> None:
    assert kept({"link": target}) == {"link"}


@pytest.mark.parametrize(
    "target",
    ["/dev/zero", "..", "../x", "d/../../x", "/workdir/../dev/zero", "/workdirs/a", "/proc/self/cwd/a", "link"],
)
def test_links_that_lead_outside_or_nowhere_are_not(target: str) -> None:
    assert kept({"link": target}) == set()


def test_a_way_out_over_another_link_is_seen() -> None:
    assert kept({"d/e/up": "../..", "x": "d/e/up/../../dev/zero"}) == {"d/e/up"}
    assert kept({"out": "/dev", "zero": "out/zero"}) == set()


def test_very_many_steps_end() -> None:
    chain = {f"l{number}": f"l{number + 1}/../l{number + 1}" for number in range(2000)}
    assert "l0" not in kept(chain)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "d/a", "d/e/a", "d/e/b"]),
        st.lists(st.sampled_from(["..", "a", "b", "d", "e", "."]), min_size=1, max_size=5).map("/".join),
        max_size=4,
    )
)
def test_no_link_that_is_kept_resolves_outside(tmp_path_factory: pytest.TempPathFactory, links: dict[str, str]) -> None:
    root = tmp_path_factory.mktemp("work", numbered=True)
    work = root / "x" / "work"
    (work / "d" / "e").mkdir(parents=True)
    for path, target in links.items():
        (work / path).symlink_to(target)
    for path in without_outside_links(WorkTree(files={"f": WorkFile(data=b"")}, symlinks=links), str(work)).symlinks:
        assert _resolved(work / path).is_relative_to(work)


def _resolved(path: Path) -> Path:
    return Path(path.resolve(strict=False))

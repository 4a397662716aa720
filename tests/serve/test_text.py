"""Text in pieces: joined it is the whole, and nothing is taken back."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from longrein.serve.text import TextRules, TextStream
from tests import tiny

TOKENIZER = tiny.tokenizer()
STOPS = st.lists(st.text("abé", min_size=1, max_size=3), max_size=3)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("abcé🙂 ", max_size=20),
    raw=st.lists(st.integers(3, 258), max_size=6),
    stops=STOPS,
    include_stop=st.booleans(),
    cuts=st.lists(st.integers(1, 4), max_size=40),
)
@example(text="cab", raw=[], stops=["ab"], include_stop=False, cuts=[1, 1, 1])
def test_the_pieces_are_the_whole(
    text: str, raw: list[int], stops: list[str], include_stop: bool, cuts: list[int]
) -> None:
    ids = [*TOKENIZER.encode(text, add_special_tokens=False), *raw]
    rules = TextRules(stops=tuple(stops), include_stop=include_stop)
    stream, pieces, at = TextStream(TOKENIZER, rules), [], 0
    for size in cuts:
        pieces.append(stream.push(ids[at : at + size]))
        at += size
    pieces += [stream.push(ids[at:]), stream.finish()]
    assert "".join(pieces) == rules.cut(TOKENIZER.decode(ids, skip_special_tokens=True))


def test_a_piece_goes_out_as_soon_as_it_is_certain() -> None:
    stream = TextStream(TOKENIZER, TextRules(stops=("stop",)))
    encode = TOKENIZER.encode
    assert stream.push(encode("ab", add_special_tokens=False)) == "ab"
    assert stream.push(encode("c st", add_special_tokens=False)) == "c "
    assert stream.push(encode("ar", add_special_tokens=False)) == "star"
    smile = encode("🙂", add_special_tokens=False)
    assert stream.push(smile[:2]) == ""
    assert stream.push(smile[2:]) == "🙂"
    assert stream.push(encode(" stop it", add_special_tokens=False)) == " "
    assert stream.finish() == ""

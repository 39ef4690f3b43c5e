"""Random ids and texts: streamed text is the whole text, and stop strings are found as the naive search
finds them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import given, settings
from hypothesis import strategies as st

from hundredfold.models import resolve
from hundredfold_tokenizer.chat.marking import Edges, Marker
from hundredfold_tokenizer.output.choice import ChoiceText, TextRules
from hundredfold_tokenizer.output.detokenizer import Detokenizer, decode
from hundredfold_tokenizer.output.stops import Match, StopMatcher
from hundredfold_tokenizer.vocabulary import Vocabulary, load_vocabulary
from support.tiny_text_model import byte_level_model, spm_model

MAKERS = {"bpe": byte_level_model, "spm": spm_model}


@cache
def vocabulary(kind: str) -> Vocabulary:
    return load_vocabulary(resolve(str(MAKERS[kind](Path(mkdtemp()) / kind))))


kinds = st.sampled_from(sorted(MAKERS))
token_ids = st.lists(st.one_of(st.integers(0, 560), st.integers(3, 258)), max_size=80)


@given(kind=kinds, ids=token_ids, skip=st.booleans(), at_start=st.booleans())
@settings(max_examples=400, deadline=None)
def test_streamed_text_is_the_whole_text(kind: str, ids: list[int], skip: bool, at_start: bool) -> None:
    """Items 79, 82, 84: any ids, special and unknown ones among them."""
    table = vocabulary(kind).table
    detokenizer = Detokenizer(table, skip_special=skip, at_start=at_start)
    pieces = [detokenizer.feed(token_id) for token_id in ids]
    streamed = "".join(pieces) + detokenizer.flush()
    whole = decode(table, ids, skip_special=skip)
    if at_start or not table.strips_space:
        assert streamed == whole
    else:
        assert streamed.removeprefix(" ") == whole
    for piece in pieces:
        piece.encode()  # nothing that a message could not carry


@given(kind=kinds, text=st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_text_survives_the_round_trip(kind: str, text: str) -> None:
    """Encode then decode gives the text back, special tokens written in it included."""
    known = vocabulary(kind)
    assert decode(known.table, known.encode_text(text), skip_special=True) == text


@given(
    text=st.text(max_size=40),
    special=st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<s>", "</s>"])),
)
@settings(max_examples=200, deadline=None)
def test_users_cannot_write_special_ids(text: str, special: list[str]) -> None:
    written = text.join(special) + text
    for kind in MAKERS:
        known = vocabulary(kind)
        inside = known.encode_text(written, add_special=False)
        assert not set(inside) & set(known.encoder.controls.values())


fragments = st.lists(
    st.sampled_from(
        [
            "<|im_end|>",
            "<|im_start|>",
            "<|",
            "im_end",
            "|>",
            "<",
            ">",
            "|",
            "x",
            " ",
            "\n",
            "\ue000",
            "\ue001",
        ]
    ),
    max_size=8,
).map("".join)


@given(texts=st.lists(fragments, min_size=1, max_size=4))
@settings(max_examples=400, deadline=None)
def test_chats_hold_the_templates_special_tokens_and_no_others(texts: list[str]) -> None:
    """Whatever users write, also side by side: special ids are those that the template wrote, text is
    unchanged.
    """
    known = vocabulary("bpe")
    encoder = known.encoder
    marker = Marker(encoder.written(), Edges(list(encoder.controls)), "".join(texts))
    rendered = "<|im_start|>" + "".join(marker.mark(texts)) + "<|im_end|>" + "|>".join(marker.mark(texts))
    text, spelt = marker.unmark(rendered, encoder.spell)
    ids = known.encode_chat(spelt)
    assert text == "<|im_start|>" + "".join(texts) + "<|im_end|>" + "|>".join(texts)
    assert [token_id for token_id in ids if token_id < 3] == [1, 2]
    assert decode(known.table, ids, skip_special=False) == text


small = st.text("ab", min_size=1, max_size=6)


@given(
    pieces=st.lists(st.text("abc", max_size=5), max_size=30),
    stops=st.lists(small, min_size=1, max_size=4),
    include=st.booleans(),
    armed_from=st.integers(0, 20),
)
@settings(max_examples=500, deadline=None)
def test_stop_strings_against_the_naive_search(
    pieces: list[str], stops: list[str], include: bool, armed_from: int
) -> None:
    """Items 85 and 95: the same match, the same text, and never more held back than could become a stop
    string.
    """
    matcher = StopMatcher(stops, include_stop=include)
    out, stopped, seen = "", None, ""
    for index, piece in enumerate(pieces):
        found = matcher.feed(piece, armed=index >= armed_from)
        seen += piece
        if isinstance(found, Match):
            out, stopped = out + found.text, found.stop
            break
        out += found
        held = seen[len(out) :]
        assert seen.startswith(out)
        assert held == max(
            (stop[:n] for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])), key=len
        )
    else:
        out += matcher.flush()
    assert (out, stopped) == naive(pieces, stops, include, armed_from)


def naive(pieces: list[str], stops: list[str], include: bool, armed_from: int) -> tuple[str, str | None]:
    """Look at every ending of the text, character by character."""
    text = ""
    for index, piece in enumerate(pieces):
        for char in piece:
            text += char
            ending = [stop for stop in stops if text.endswith(stop)]
            if ending and index >= armed_from:
                stop = max(ending, key=len)
                return (text if include else text[: -len(stop)]), stop
    return text, None


@given(
    ids=token_ids,
    cuts=st.lists(st.integers(1, 5), max_size=40),
    stop=st.text("thequick ", min_size=1, max_size=4),
)
@settings(max_examples=300, deadline=None)
def test_a_choice_does_not_depend_on_its_steps(ids: list[int], cuts: list[int], stop: str) -> None:
    """One id at a time, or many (as speculation brings them): the same text and the same ids that count."""
    rules = TextRules(vocabulary("bpe").table, (stop,), False, 2, True, False, False)
    whole = ChoiceText(rules)
    expected = whole.feed(ids) + whole.flush()
    parts = ChoiceText(rules)
    text, rest = "", ids
    for cut in [*cuts, len(ids) or 1]:
        if rest and parts.stopped_by is None:
            text += parts.feed(rest[:cut])
            rest = rest[cut:]
    text += parts.flush()
    assert (text, parts.stopped_by, list(parts.ids)) == (expected, whole.stopped_by, list(whole.ids))

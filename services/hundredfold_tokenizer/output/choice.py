"""One choice of a request as it grows: ids in, text out, until a stop string or the scheduler ends it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from hundredfold_tokenizer.output.detokenizer import Detokenizer
from hundredfold_tokenizer.output.stops import Match, StopMatcher
from hundredfold_tokenizer.vocabulary import TokenTable


@dataclass(frozen=True, slots=True)
class TextRules:
    """How a request's ids become its text.

    Attributes:
        table: The vocabulary.
        stop: Stop strings.
        include_stop: Whether a matched one stays in the text.
        min_tokens: Stop strings count from here on.
        skip_special: Special tokens are left out.
        at_start: No text precedes the answer.
        watch_special: Stop strings name special tokens, so these are matched although they are left out.
    """

    table: TokenTable
    stop: tuple[str, ...]
    include_stop: bool
    min_tokens: int
    skip_special: bool
    at_start: bool
    watch_special: bool


class ChoiceText:
    """Text and ids of one choice.

    ``ids`` holds every id that counts; a stop string's match ends it for good, and ids after it are dropped.
    """

    __slots__ = ("_detokenizer", "_hidden", "_matcher", "_min_tokens", "_table", "ids", "stopped_by")

    def __init__(self, rules: TextRules) -> None:
        self._detokenizer = Detokenizer(rules.table, skip_special=rules.skip_special, at_start=rules.at_start)
        self._matcher = StopMatcher(rules.stop, include_stop=rules.include_stop) if rules.stop else None
        self._min_tokens = rules.min_tokens
        self._table = rules.table
        watches = self._matcher is not None and rules.watch_special and rules.skip_special
        self._hidden = rules.table.special if watches else frozenset[int]()
        self.ids = array("I")
        self.stopped_by: str | None = None

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that these ids bring out; ``stopped_by`` is set when a stop string is among it."""
        feed, matcher = self._detokenizer.feed, self._matcher
        if matcher is None:
            self.ids.extend(token_ids)
            return feed(token_ids[0]) if len(token_ids) == 1 else "".join(map(feed, token_ids))
        out: list[str] = []
        for token_id in token_ids:
            if self.stopped_by is not None:
                break
            self.ids.append(token_id)
            armed = len(self.ids) >= self._min_tokens
            if token_id in self._hidden and token_id < self._table.size:
                hidden = self._table.raw[token_id].decode("utf-8", "replace")
                self._take(matcher.feed(hidden, armed=armed, hidden=True), out)
            elif piece := feed(token_id):
                self._take(matcher.feed(piece, armed=armed), out)
        return "".join(out)

    def flush(self) -> str:
        """The text that was held back, when the choice has ended otherwise than by a stop string."""
        if self.stopped_by is not None:
            return ""
        rest = self._detokenizer.flush()
        if self._matcher is None:
            return rest
        out: list[str] = []
        self._take(self._matcher.feed(rest, armed=False), out)
        out.append(self._matcher.flush())
        return "".join(out)

    def _take(self, found: str | Match, out: list[str]) -> None:
        if isinstance(found, Match):
            self.stopped_by = found.stop
            out.append(found.text)
        else:
            out.append(found)

"""The plugin and its drafter: an index per sequence, and what followed at the place that it finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hundredfold.plugin import API_VERSION, Drafter, DraftRequest, Reasons, SpeculationSpec
from hundredfold_ngram.index import SequenceIndex

_MOST_BUCKETS = 1 << 16
_LONGEST_OF_ALL = 32
_OPTIONS = ("shortest", "longest", "tried")


@dataclass(frozen=True, slots=True)
class NgramOptions:
    """What the operator can tell the strategy."""

    shortest: int = 2
    """Least tokens that have to be the same for a place to count."""
    longest: int = 4
    """Tokens beyond which a match is as good as it gets."""
    tried: int = 32
    """Most places that are compared for one draft, the latest first."""


class NgramDrafter:
    """Drafts for the sequences of one worker."""

    def __init__(self, spec: SpeculationSpec, options: NgramOptions) -> None:
        self._options = options
        self._num_buckets = min(_MOST_BUCKETS, 1 << max(8, spec.max_model_len.bit_length()))
        self._indexes: dict[int, SequenceIndex] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """What followed the longest match; a draft that reaches the end goes on with itself, as in a loop."""
        return [self._propose(request) if request.max_draft_tokens > 0 else [] for request in requests]

    def observe(self, slot: int, proposed: int, accepted: int) -> None:
        """Nothing is learned from it: the text itself says more."""

    def forget(self, slot: int) -> None:
        """The slot's sequence is gone."""
        self._indexes.pop(slot, None)

    def _propose(self, request: DraftRequest) -> list[int]:
        index = self._indexes.get(request.slot)
        if index is None:
            options = self._options
            index = SequenceIndex(options.shortest, options.longest, self._num_buckets, options.tried)
            self._indexes[request.slot] = index
        place = index.find(request.token_ids)
        if place is None:
            return []
        most, period = request.max_draft_tokens, len(request.token_ids) - place
        draft: list[int] = request.token_ids[place : place + most].tolist()
        while len(draft) < most:
            draft.append(draft[len(draft) - period])
        return draft


class Ngram:
    """Prompt lookup: what followed the last tokens where they occurred before is drafted."""

    name = "ngram"
    api_version = API_VERSION

    def refuses(self, spec: SpeculationSpec) -> Reasons:
        """Any target will do; options may not."""
        try:
            _options(spec.options)
        except ValueError as error:
            return [str(error)]
        return []

    def bind(self, spec: SpeculationSpec) -> Drafter:
        """A drafter for the target."""
        return NgramDrafter(spec, _options(spec.options))


def _options(texts: Mapping[str, str]) -> NgramOptions:
    """Raises ``ValueError`` that names option, value and limit."""
    unknown = [name for name in texts if name not in _OPTIONS]
    if unknown:
        raise ValueError(f"option {unknown[0]!r} is unknown; options are {', '.join(_OPTIONS)}")
    values = {name: _number(name, text) for name, text in texts.items()}
    options = NgramOptions(**values)
    if options.longest < options.shortest:
        raise ValueError(f"longest = {options.longest} is below shortest = {options.shortest}")
    return options


def _number(name: str, text: str) -> int:
    most = 1024 if name == "tried" else _LONGEST_OF_ALL
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
        raise ValueError(f"{name} = {text!r} has to be a number from 1 to {most}")
    return int(text)

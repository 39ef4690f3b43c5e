"""Runs every check on a model: its files first, then what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

import torch

from hundredfold.errors import StartError
from hundredfold.findings import Finding, Severity
from hundredfold.models import ModelError, resolve
from hundredfold_worker.diagnose.against import check_against, losses
from hundredfold_worker.diagnose.attention import MOST_TOKENS, LayerPattern, check_attention, patterns
from hundredfold_worker.diagnose.positions import check_positions
from hundredfold_worker.diagnose.sweep import Sampled, check_prompt, check_sweep, sweep
from hundredfold_worker.model import LoadedModel
from hundredfold_worker.model.decoder import Decoder
from hundredfold_worker.quality.layers import LayerLoss
from hundredfold_worker.quality.sides import Side
from hundredfold_worker.startup import open_registries, start_model

TOOLS = "hundredfold.tools"
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be looked at."""

    side: Side
    prompt: str
    against: Side | None = None
    num_tokens: int = 24
    run: bool = True
    """Whether the model is loaded; otherwise only its files are looked at."""


@dataclass(slots=True)
class Diagnosis:
    """What was found."""

    findings: list[Finding] = field(default_factory=list)
    prompt_tokens: int = 0
    patterns: list[LayerPattern] = field(default_factory=list)
    sampled: tuple[Sampled, ...] = ()
    texts: tuple[str, ...] = ()
    """Of what was sampled."""
    losses: tuple[LayerLoss, ...] = ()

    @property
    def wrong(self) -> bool:
        """Whether anything is an error."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def diagnose(question: Question, progress: Progress) -> Diagnosis:
    """Everything that can be looked at; what cannot is a finding. Raises ``StartError`` without a model."""
    settings = question.side.settings
    found = Diagnosis()
    progress("files")
    try:
        files = resolve(settings.model)
        found.findings += tool("check-text")(settings.model)
        found.findings += check_positions(files, settings.max_model_len)
    except ModelError as error:
        raise StartError(str(error)) from error
    if question.run:
        progress("load")
        try:
            model = start_model(settings, open_registries(settings)).model
            _look(question, model, found, progress)
        except StartError as error:
            found.findings.append(
                Finding(
                    "does-not-load",
                    Severity.ERROR,
                    str(error),
                    "the files are incomplete or damaged, or ask for what is not supported",
                    "the message names file, tensor or setting",
                )
            )
    found.findings.sort(key=lambda finding: list(Severity).index(finding.severity))
    return found


def _look(question: Question, model: LoadedModel, found: Diagnosis, progress: Progress) -> None:
    decoder = getattr(model, "decoder", None)
    if not isinstance(decoder, Decoder):
        raise StartError("only a model that runs in this process can be looked into")
    ids = _prompt(question, model)
    found.prompt_tokens = len(ids)
    progress("attention")
    found.patterns, logits = patterns(decoder, torch.tensor(ids))
    found.findings += [*check_attention(found.patterns), *check_prompt(logits, ids)]
    if bool(torch.isfinite(logits).all()):
        progress("temperatures")
        found.sampled = sweep(model, ids, question.num_tokens, question.side.settings.block_size)
        found.texts = tuple(_texts(question.side.settings.model, found.sampled))
        found.findings += check_sweep(found.sampled)
    if question.against is not None:
        progress("layers against the other model")
        settings = question.against.settings
        other = start_model(settings, open_registries(settings)).model
        found.losses = losses(model, other, ids)
        found.findings += check_against(found.losses)


def _prompt(question: Question, model: LoadedModel) -> list[int]:
    try:
        prefix, ids = tool("encode")(question.side.settings.model, question.prompt)
    except Exception as error:  # without a usable tokenizer, of which a finding tells
        raise StartError(f"the prompt cannot be encoded: {error}") from error
    most = min(MOST_TOKENS, model.max_model_len - 1)
    whole: list[int] = [index for index in [*prefix, *ids] if index < model.vocab_size][:most]
    if not whole:
        raise StartError("the prompt has no tokens that the model knows")
    return whole


def _texts(model: str, sampled: Iterable[Sampled]) -> Iterator[str]:
    decode: Callable[[str, Sequence[int]], str] = tool("decode")
    for one in sampled:
        yield decode(model, one.ids)


def tool(name: str) -> Callable[..., Any]:
    """What another room brings. Raises ``StartError`` when nothing does."""
    points = list(entry_points(group=TOOLS, name=name))
    if not points:
        raise StartError(f"no installed package offers the tool '{name}': install hundredfold again")
    loaded: Callable[..., Any] = points[0].load()
    return loaded

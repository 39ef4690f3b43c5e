"""The same prompt at several temperatures, and what the model thinks of the prompt itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.findings import Finding, Severity, fine
from hundredfold_worker.model import LoadedModel
from hundredfold_worker.quality.scored import Scored

TEMPERATURES = (0.0, 0.3, 0.7, 1.0, 1.5)
_LONGEST_PERIOD = 6
_TIMES = 3
_UNLIKELY = 0.9
"""Of a uniform guess's loss: a model that reads its prompt so does not know the language."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What came out at one temperature."""

    temperature: float
    ids: tuple[int, ...]
    entropy: float
    """Mean over steps, in nats, of what was drawn from; greedy: of the plain distribution."""
    best: float
    """Mean probability of the likeliest token, in the plain distribution."""
    finite: bool
    loops: bool
    """Whether its end repeats itself."""


def sweep(model: LoadedModel, ids: Sequence[int], count: int, block_size: int) -> tuple[Sampled, ...]:
    """``count`` ids after the prompt at each temperature, drawn with one seed."""
    window = min(model.max_model_len, len(ids) + count + 1)
    scored = Scored(model, block_size, window)
    prompt = torch.tensor(list(ids))
    with torch.inference_mode():
        first = scored.logits(prompt, 0)[-1].float().clone()
        room = max(1, min(count, window - len(ids)))
        return tuple(_sample(scored, first, len(ids), room, heat) for heat in TEMPERATURES)


def _sample(scored: Scored, logits: Tensor, position: int, count: int, heat: float) -> Sampled:
    noise = torch.Generator().manual_seed(0)
    drawn: list[int] = []
    entropy, best, finite = 0.0, 0.0, True
    for step in range(count):
        if not bool(torch.isfinite(logits).all()):
            finite = False
            break
        plain = logits.softmax(-1)
        used = plain if heat == 0 else (logits / heat).softmax(-1)
        entropy -= float((used * used.clamp(min=1e-30).log()).sum())
        best += float(plain.max())
        token = int(plain.argmax()) if heat == 0 else int(torch.multinomial(used.cpu(), 1, generator=noise))
        drawn.append(token)
        if step + 1 < count:
            logits = scored.logits(torch.tensor([token]), position + step)[-1].float()
    steps = max(1, len(drawn))
    return Sampled(heat, tuple(drawn), entropy / steps, best / steps, finite, repeats(drawn))


def repeats(ids: Sequence[int]) -> bool:
    """Whether the end is the same run of ids at least three times."""
    for period in range(1, _LONGEST_PERIOD + 1):
        end = list(ids[-period * _TIMES :])
        if len(end) == period * _TIMES and end == end[:period] * _TIMES and len(end) >= 6:
            return True
    return False


def check_prompt(logits: Tensor, ids: Sequence[int]) -> Iterator[Finding]:
    """How likely the model finds the prompt; ``logits`` float32[n, vocabulary] of its first n ids."""
    if not bool(torch.isfinite(logits).all()):
        yield Finding(
            "logits-non-finite",
            Severity.ERROR,
            "logits of the prompt are not finite",
            "weights or scales hold NaN or infinities, or a value overflows in fp16",
            "use --dtype bf16 or fp32; compare with the dense model (--against)",
        )
        return
    if len(ids) < 4:
        return
    targets = torch.tensor(list(ids[1 : len(logits)]), device=logits.device)
    loss = float(torch.nn.functional.cross_entropy(logits[: len(targets)], targets))
    uniform = math.log(logits.shape[1])
    perplexity = math.exp(min(loss, 50.0))
    if loss > _UNLIKELY * uniform:
        yield Finding(
            "prompt-unlikely",
            Severity.ERROR,
            f"the model finds the prompt as unlikely as noise: perplexity {perplexity:,.0f} of "
            f"{logits.shape[1]:,} tokens",
            "weights in the wrong order or scale, a tokenizer of another model, or wrong rotary settings",
            "look at the other findings; compare with the dense model (--against)",
        )
    else:
        yield fine("prompt", f"perplexity of the prompt: {perplexity:,.1f}")


def check_sweep(found: Sequence[Sampled]) -> Iterator[Finding]:
    """What the temperatures tell."""
    greedy = next(sampled for sampled in found if sampled.temperature == 0)
    warm = [sampled for sampled in found if 0.5 <= sampled.temperature <= 1.0]
    if any(sampled.loops for sampled in warm):
        yield Finding(
            "loops-when-sampled",
            Severity.ERROR,
            "answers repeat themselves at usual temperatures, too",
            "the model is damaged, or the prompt is not in the form that it was trained on",
            "send chats through the chat template; compare with the dense model (--against)",
        )
    elif greedy.loops:
        yield Finding(
            "greedy-loops",
            Severity.WARNING,
            "the greedy answer repeats itself",
            "small models do at temperature 0, whatever the server",
            "set temperature 0.7, or repetition_penalty 1.1",
        )
    else:
        yield fine("sweep", f"no answer repeats itself; best token {greedy.best:.0%} likely on the mean")

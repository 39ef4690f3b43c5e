"""Word perplexity of a page: its whole log likelihood over its number of words."""

from __future__ import annotations


def process_results(doc: dict[str, str], results: tuple[float, ...]) -> dict[str, tuple[float, int]]:
    """As lm-eval's own wikitext task counts it."""
    (loglikelihood,) = results
    return {"word_perplexity": (loglikelihood, len(doc["page"].split()))}

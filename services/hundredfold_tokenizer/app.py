"""Starts the tokenizer service."""

from __future__ import annotations

from hundredfold.config import service_command
from hundredfold.models import ModelError
from hundredfold.rpc import keep_what_is_loaded, run_loop, wait_for_turns
from hundredfold.telemetry import get_logger
from hundredfold_tokenizer.service import ServedModel, TokenizerService, load_model
from hundredfold_tokenizer.settings import TokenizerSettings
from hundredfold_tokenizer.vocabulary import VocabularyError

log = get_logger(__name__)

EXIT_FAILED = 1


def run(settings: TokenizerSettings) -> int:
    """Load the tokenizer and serve until told to stop; the exit code."""
    try:
        model = load_model(settings)
    except (ModelError, VocabularyError) as error:
        log.error("cannot start", service="tokenizer", reason=str(error))
        return EXIT_FAILED
    log.info("tokenizer loaded", model=model.name, vocabulary=model.vocabulary.size)
    keep_what_is_loaded()
    wait_for_turns()
    return run_loop(_serve(settings, model))


async def _serve(settings: TokenizerSettings, model: ServedModel) -> int:
    return await TokenizerService(settings, model).run()


command = service_command(TokenizerSettings, run)
"""``hundredfold tokenizer``."""

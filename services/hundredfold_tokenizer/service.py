"""Puts the door together: which part knows which."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial

from hundredfold.internal.v1 import scheduler_pb2
from hundredfold.models import GgufMetadata, ModelFiles, fingerprint, gguf_metadata, resolve
from hundredfold.rpc import PROTOCOL_VERSION, ServiceHost, open_channel
from hundredfold.telemetry import LoadSample, get_logger
from hundredfold.v1 import control_pb2, generation_pb2_grpc, tokenizer_pb2_grpc
from hundredfold_tokenizer.chat.process import RenderProcess
from hundredfold_tokenizer.chat.template import ChatTemplate
from hundredfold_tokenizer.control import DoorControl
from hundredfold_tokenizer.defaults import CheckpointDefaults, checkpoint_defaults
from hundredfold_tokenizer.door import Door
from hundredfold_tokenizer.encoding import EncodePool
from hundredfold_tokenizer.generation import GenerationServicer
from hundredfold_tokenizer.ledger import Ledger
from hundredfold_tokenizer.output.pacing import Pacer
from hundredfold_tokenizer.output.unread import UnreadBudget
from hundredfold_tokenizer.oversize import add_limited, most_request_bytes
from hundredfold_tokenizer.prompts import Prompts
from hundredfold_tokenizer.readiness import Readiness
from hundredfold_tokenizer.requests.attachment import Attachment
from hundredfold_tokenizer.requests.registry import Registry
from hundredfold_tokenizer.settings import TokenizerSettings
from hundredfold_tokenizer.text import TextServicer
from hundredfold_tokenizer.vocabulary import Vocabulary, load_vocabulary

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the door knows of the model: its name and text, nothing of its weights."""

    name: str
    fingerprint: str
    vocabulary: Vocabulary
    defaults: CheckpointDefaults


def load_model(settings: TokenizerSettings) -> ServedModel:
    """Read tokenizer and defaults from disk.

    Raises:
        ModelError: The model cannot be found or read.
        VocabularyError: Its tokenizer cannot be used.
    """
    files: ModelFiles = resolve(settings.model)
    metadata: GgufMetadata | None = gguf_metadata(files.path) if files.container == "gguf" else None
    vocabulary = load_vocabulary(files, metadata)
    return ServedModel(
        name=settings.model_name or files.name,
        fingerprint=fingerprint(files),
        vocabulary=vocabulary,
        defaults=checkpoint_defaults(files, metadata, vocabulary.eos_ids),
    )


class TokenizerService:
    """The door as a whole. Built on the event loop that it runs on.

    Args:
        settings: What it was told.
        model: What it serves.
        install_signals: Whether it is stopped by the process's signals; else by ``host``.
    """

    def __init__(
        self, settings: TokenizerSettings, model: ServedModel, *, install_signals: bool = True
    ) -> None:
        connect = partial(open_channel, settings.scheduler, settings.max_message_bytes)
        self._model = model
        self._budget = UnreadBudget(settings.max_unread_bytes)
        pacer = Pacer(settings.deltas_per_s, settings.max_delta_delay_s)
        self._registry = Registry(settings.max_requests)
        self.attachment = Attachment(
            connect,
            scheduler_pb2.AttachHello(
                protocol_version=PROTOCOL_VERSION,
                replica=settings.replica_name,
                model_fingerprint=model.fingerprint,
            ),
            grace_s=settings.recovery_grace_s,
            on_change=self._on_link,
            after_step=self._budget.enforce,
        )
        self._pool = EncodePool(settings.encode_threads)
        self._renderer = RenderProcess(
            model.vocabulary.templates,
            timeout_s=settings.template_timeout_s,
            max_chars=settings.max_prompt_bytes,
        )
        template = ChatTemplate(model.vocabulary, self._renderer, model.name)
        prompts = Prompts(model.vocabulary, template, self._pool, settings.max_prompt_bytes)
        # The host and its metrics need the control source, which needs the ledger, which needs the metrics.
        self._control = DoorControl(
            describe=self._describe,
            registry=self._registry,
            totals=lambda: self._ledger.totals,
            budget=self._budget,
            pacer=pacer,
            connect=connect,
            scheduler=settings.scheduler,
        )
        self.host = ServiceHost("tokenizer", settings, self._control, install_signals=install_signals)
        self._ledger = Ledger(self.host.metrics, model.name)
        self.host.metrics.watch_load(lambda: LoadSample(running=len(self._registry)))
        self._readiness = Readiness(self.host.set_ready, settings.recovery_grace_s, settings.scheduler)
        self.door = Door(
            model=model.name,
            vocabulary=model.vocabulary,
            defaults=model.defaults,
            prompts=prompts,
            attachment=self.attachment,
            registry=self._registry,
            budget=self._budget,
            ledger=self._ledger,
        )
        generation = GenerationServicer(self.door, pacer, settings.max_message_bytes)
        text = TextServicer(model.name, model.vocabulary, prompts, self._vocab_size, self._max_model_len)
        most = most_request_bytes(settings.max_prompt_bytes)
        add_limited(
            generation_pb2_grpc.add_GenerationServiceServicer_to_server, generation, self.host.server, most
        )
        add_limited(tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server, text, self.host.server, most)

    async def run(self) -> int:
        """Serve until told to stop; the exit code."""
        self._on_link()
        if self._model.vocabulary.templates:
            await self._renderer.start()
        attach = asyncio.create_task(self.attachment.run())
        attach.add_done_callback(self._attach_ended)
        try:
            return await self.host.run()
        finally:
            attach.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await attach
            await self._renderer.close()
            self._pool.close()

    def _on_link(self) -> None:
        self._readiness.follow(self.attachment.link)

    def _attach_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.host.fail(f"the attach loop ended: {task.exception()!r}")

    def _vocab_size(self) -> int:
        limits = self.attachment.limits
        known = self._model.defaults.vocab_size if limits is None else limits.vocab_size
        return max(known or 0, self._model.vocabulary.size)

    def _max_model_len(self) -> int:
        limits = self.attachment.limits
        return (self._model.defaults.max_model_len or 0) if limits is None else limits.max_model_len

    def _describe(self) -> control_pb2.ServiceInfo:
        info = self.host.service_info("tokenizers", "jinja2")
        info.model.CopyFrom(
            control_pb2.ModelInfo(
                name=self._model.name,
                fingerprint=self._model.fingerprint,
                architecture=self._model.defaults.architecture,
                max_model_len=self._max_model_len(),
                vocab_size=self._vocab_size(),
            )
        )
        return info

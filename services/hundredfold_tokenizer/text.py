"""TokenizerService: text to ids and back, without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from hundredfold.v1 import tokenizer_pb2 as pb
from hundredfold.v1 import tokenizer_pb2_grpc
from hundredfold_tokenizer.output.detokenizer import decode
from hundredfold_tokenizer.prompts import Prompts
from hundredfold_tokenizer.validation.errors import invalid
from hundredfold_tokenizer.validation.fields import check_model
from hundredfold_tokenizer.vocabulary import Vocabulary

Context = grpc.aio.ServicerContext[Any, Any]

MAX_DECODE_IDS = 2_000_000
"""Most ids in one Decode."""

_INLINE_IDS = 4096


class TextServicer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Answers from the vocabulary.

    Args:
        model: The served model's name.
        vocabulary: Its vocabulary.
        prompts: Encodes texts and chats.
        vocab_size: How many ids the model has; those beyond the tokenizer's have no text.
        max_model_len: Longest prompt and answer together.
    """

    def __init__(
        self,
        model: str,
        vocabulary: Vocabulary,
        prompts: Prompts,
        vocab_size: Callable[[], int],
        max_model_len: Callable[[], int],
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._prompts = prompts
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len

    async def Encode(self, request: pb.EncodeRequest, context: Context) -> pb.EncodeResponse:
        """See the contract."""
        check_model(request.model if request.HasField("model") else None, self._model)
        ids = await self._prompts.text(
            request.text,
            add_special=request.add_special_tokens if request.HasField("add_special_tokens") else True,
            parse_special=request.parse_special,
            max_model_len=None,
        )
        return pb.EncodeResponse(token_ids=ids)

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.DecodeResponse:
        """See the contract."""
        check_model(request.model if request.HasField("model") else None, self._model)
        count = len(request.token_ids)
        if count > MAX_DECODE_IDS:
            raise invalid("token_ids", f"{count} ids", f"is above the limit {MAX_DECODE_IDS}")
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        if count <= _INLINE_IDS:
            return self._decode(request, skip)
        return await asyncio.to_thread(self._decode, request, skip)

    async def RenderChat(self, request: pb.RenderChatRequest, context: Context) -> pb.RenderChatResponse:
        """See the contract."""
        check_model(request.model if request.HasField("model") else None, self._model)
        chat = await self._prompts.chat(request.chat, max_model_len=None)
        return pb.RenderChatResponse(text=chat.text, token_ids=chat.token_ids)

    async def CountTokens(self, request: pb.CountTokensRequest, context: Context) -> pb.CountTokensResponse:
        """See the contract."""
        check_model(request.model if request.HasField("model") else None, self._model)
        kind = request.WhichOneof("input")
        if kind == "text":
            add = request.add_special_tokens if request.HasField("add_special_tokens") else True
            count = len(await self._prompts.text(request.text, add_special=add, max_model_len=None))
        elif kind == "chat":
            count = len((await self._prompts.chat(request.chat, max_model_len=None)).token_ids)
        else:
            raise invalid("input", "unset", "needs one of text and chat")
        return pb.CountTokensResponse(count=count, max_model_len=self._max_model_len())

    def _decode(self, request: pb.DecodeRequest, skip_special: bool) -> pb.DecodeResponse:
        ids = list(request.token_ids)
        size = self._vocab_size()
        if max(ids, default=0) >= size:
            index = next(index for index, token_id in enumerate(ids) if token_id >= size)
            limit = f"is no id of the vocabulary of {size}"
            raise invalid(f"token_ids[{index}]", ids[index], limit)
        return pb.DecodeResponse(text=decode(self._vocabulary.table, ids, skip_special=skip_special))

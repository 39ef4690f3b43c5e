"""The Python client: ``Client`` blocks, ``AsyncClient`` is for asyncio; both resume broken streams."""

from hundredfold.client.aio import AsyncClient, AsyncGenerateStream
from hundredfold.client.answer import Answer, Choice, FinishReason
from hundredfold.client.defaults import DEFAULT_ADDRESS
from hundredfold.client.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NotAllowed,
    NotFound,
    NotPossible,
    Overloaded,
    RequestFailed,
    Unavailable,
    Unsupported,
)
from hundredfold.client.options import ChatMessage, ChatOptions, GenerateOptions, SamplingOptions
from hundredfold.client.retry import RetryPolicy
from hundredfold.client.session import Event
from hundredfold.client.sync import Client, GenerateStream
from hundredfold.v1.generation_pb2 import Delta, Finished, PromptLogprobs, Started

__all__ = [
    "DEFAULT_ADDRESS",
    "AlreadyExists",
    "Answer",
    "AsyncClient",
    "AsyncGenerateStream",
    "Cancelled",
    "ChatMessage",
    "ChatOptions",
    "Choice",
    "Client",
    "DeadlineExceeded",
    "Delta",
    "Event",
    "FinishReason",
    "Finished",
    "GenerateOptions",
    "GenerateStream",
    "InvalidRequest",
    "NotAllowed",
    "NotFound",
    "NotPossible",
    "Overloaded",
    "PromptLogprobs",
    "RequestFailed",
    "RetryPolicy",
    "SamplingOptions",
    "Started",
    "Unavailable",
    "Unsupported",
]

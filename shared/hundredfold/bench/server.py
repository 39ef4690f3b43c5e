"""What the load tool asks the server: ordinary token ids, memory, device, precision, versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from hundredfold.bench.prompts import ORDINARY_TEXT
from hundredfold.bench.report import Environment
from hundredfold.rpc import open_channel
from hundredfold.v1.control_pb2 import GetServerInfoRequest, RuntimeInfo, ServiceInfo
from hundredfold.v1.control_pb2_grpc import ControlServiceStub
from hundredfold.v1.tokenizer_pb2 import EncodeRequest
from hundredfold.v1.tokenizer_pb2_grpc import TokenizerServiceStub

if TYPE_CHECKING:
    from hundredfold.v1.control_pb2_grpc import ControlServiceAsyncStub
    from hundredfold.v1.tokenizer_pb2_grpc import TokenizerServiceAsyncStub

CALL_TIMEOUT_S = 10.0
PRECISION_SUBJECTS = ("quantization", "kv_cache")


class ServerError(Exception):
    """The server could not be asked; the message says what it answered."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the tool has to know before it can load a server."""

    ordinary_ids: np.ndarray[Any, np.dtype[np.uint32]]
    """[ids] uint32: token ids that are no special tokens."""
    max_model_len: int | None
    """The longest that prompt and answer may be together, if the server tells."""


async def ask_facts(address: str, max_message_bytes: int) -> ServerFacts:
    """Ask the door for what prompts need. Raises ServerError."""
    channel = open_channel(address, max_message_bytes)
    try:
        tokenizer: TokenizerServiceAsyncStub = TokenizerServiceStub(channel)  # type: ignore[assignment]
        encoded = await tokenizer.Encode(
            EncodeRequest(text=ORDINARY_TEXT, add_special_tokens=False), timeout=CALL_TIMEOUT_S
        )
        lengths = [info.model.max_model_len for info in await _services(channel) if info.HasField("model")]
    except grpc.aio.AioRpcError as failure:
        raise ServerError(f"{address} answered {failure.code().name}: {failure.details()}") from failure
    finally:
        await channel.close()
    if not encoded.token_ids:
        raise ServerError(f"{address} encoded a text of {len(ORDINARY_TEXT)} characters to no token at all")
    known = [length for length in lengths if length]
    pool = np.unique(np.asarray(encoded.token_ids, dtype=np.uint32))
    return ServerFacts(pool, min(known) if known else None)


async def ask_environment(address: str, max_message_bytes: int) -> Environment:
    """Ask the door what was measured, memory peaks included. Raises ServerError."""
    channel = open_channel(address, max_message_bytes)
    try:
        return describe(await _services(channel))
    except grpc.aio.AioRpcError as failure:
        raise ServerError(f"{address} answered {failure.code().name}: {failure.details()}") from failure
    finally:
        await channel.close()


def describe(services: Sequence[ServiceInfo]) -> Environment:
    """Turn the services' own descriptions into the report's environment."""
    peaks: dict[str, int] = {}
    versions: dict[str, str] = {}
    devices: dict[str, None] = {}
    precisions: dict[str, None] = {}
    for info in services:
        name, number = info.service, 2
        while name in peaks:
            name, number = f"{info.service}-{number}", number + 1
        peaks[name] = info.peak_resident_bytes
        versions.setdefault("hundredfold", info.version)
        for library, version in sorted(info.libraries.items()):
            versions.setdefault(library, version)
        if info.HasField("runtime"):
            devices.setdefault(info.runtime.device)
            precisions.setdefault(_precision(info.runtime))
    return Environment(
        device=" + ".join(devices) or "unknown",
        precision=" + ".join(precisions) or "unknown",
        versions=versions,
        peak_memory_bytes=peaks,
    )


async def _services(channel: grpc.aio.Channel) -> Sequence[ServiceInfo]:
    control: ControlServiceAsyncStub = ControlServiceStub(channel)  # type: ignore[assignment]
    response = await control.GetServerInfo(GetServerInfoRequest(), timeout=CALL_TIMEOUT_S)
    return response.services


def _precision(runtime: RuntimeInfo) -> str:
    chosen = {selection.subject: selection.chosen for selection in runtime.selections}
    parts = [f"{subject} {chosen[subject]}" for subject in PRECISION_SUBJECTS if subject in chosen]
    return ", ".join([runtime.dtype or "unknown", *parts])

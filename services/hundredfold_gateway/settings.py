"""What the gateway service can be told."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, field_validator, model_validator

from hundredfold.config import MIB, ServiceSettings
from hundredfold.config.address import is_local, parse


class GatewaySettings(ServiceSettings):
    """The side door: OpenAI-compatible HTTP over the public gRPC API."""

    config_section: ClassVar[str] = "gateway"

    listen: tuple[str, ...] = ("127.0.0.1:8000",)
    """Addresses for HTTP: HOST:PORT, [IPV6]:PORT or unix:/PATH."""

    control_listen: tuple[str, ...] = ("127.0.0.1:50050",)
    """Addresses for gRPC health checks and the control service."""

    door: tuple[str, ...] = ("127.0.0.1:50051",)
    """Addresses of the doors (tokenizer replicas); requests take turns among them."""

    recovery_grace_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """Seconds that requests wait for a door that is away, before they end with status 503."""

    request_timeout_s: Annotated[float, Field(gt=0, le=86400)] | None = None
    """Longest that a request may take; the header X-Request-Timeout asks for less."""

    max_requests: Annotated[int, Field(ge=1, le=100_000)] = 2048
    """Prompts in progress at once; more are refused with status 429."""

    max_prompts: Annotated[int, Field(ge=1, le=10_000)] = 256
    """Prompts in one completion request."""

    max_body_bytes: Annotated[int, Field(ge=1024, le=1024 * MIB)] = 8 * MIB
    """Largest body of a request."""

    max_connections: Annotated[int, Field(ge=1, le=100_000)] = 8192
    """Open HTTP connections; more are refused with status 503."""

    @field_validator("control_listen", "door")
    @classmethod
    def _some(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("names no address")
        return value

    @model_validator(mode="after")
    def _control_stays_home(self) -> GatewaySettings:
        for address in self.control_listen:
            parse(address)
        far = [address for address in self.control_listen if not is_local(address)]
        if far and not self.insecure:
            raise ValueError(
                f"control_listen {', '.join(far)} can be reached by other machines and is not encrypted; "
                "listen on 127.0.0.1 or a Unix socket, or set insecure to accept that"
            )
        return self

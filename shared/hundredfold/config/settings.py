"""The base of every service's settings: a frozen model whose field docstrings are the help of its flags."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from hundredfold.config.address import is_local, parse
from hundredfold.config.values import describe, lenient

MIB = 1024 * 1024
"""Bytes."""


class ServiceSettings(BaseSettings):
    """What every service can be told. A subclass sets ``config_section`` and adds documented fields.

    Building one directly uses the arguments alone; ``hundredfold.config.load`` reads file, environment and
    flags. Raises ``pydantic.ValidationError``; ``load`` turns that into a ``ConfigError``.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
        enable_decoding=False,
        env_ignore_empty=True,
        protected_namespaces=(),
    )

    config_section: ClassVar[str] = ""
    """Section of the file and, in capitals after ``HUNDREDFOLD_``, prefix of the environment variables."""

    listen: tuple[str, ...]
    """Addresses to listen on: HOST:PORT, [IPV6]:PORT or unix:/PATH."""

    insecure: bool = False
    """Allow plaintext on addresses that other machines can reach."""

    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port for Prometheus to scrape over HTTP; no port when unset."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe messages to log."""

    log_format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object a line."""

    otlp_endpoint: str | None = None
    """Where to send spans (OTLP over gRPC), such as http://127.0.0.1:4317; tracing is off when unset."""

    drain_grace_s: Annotated[float, Field(ge=0, le=86400)] = 30.0
    """Seconds that running requests may take to finish after a stop was asked for."""

    max_message_bytes: Annotated[int, Field(ge=64 * 1024, le=2**31 - 1)] = 64 * MIB
    """Largest gRPC message to receive or send, in bytes."""

    max_concurrent_rpcs: Annotated[int, Field(ge=1, le=1_000_000)] = 16384
    """Calls in progress at once; more are refused."""

    reflection: bool = False
    """Let clients list the services (gRPC server reflection)."""

    @field_validator("*", mode="before")
    @classmethod
    def _lenient(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name is None or info.field_name not in cls.model_fields:
            return value
        return lenient(cls.model_fields[info.field_name].annotation, value)

    @field_validator("listen")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("names no address")
        for address in value:
            parse(address)
        if len(set(value)) != len(value):
            raise ValueError("names an address twice")
        return value

    @model_validator(mode="after")
    def _plaintext_stays_home(self) -> ServiceSettings:
        far = [a for a in self.listen if not is_local(a)]
        if far and not self.insecure:
            raise ValueError(
                f"listen {', '.join(far)} can be reached by other machines and is not encrypted; "
                "listen on 127.0.0.1 or a Unix socket, or set insecure to accept that"
            )
        return self

    def in_force(self) -> dict[str, str]:
        """Every setting as text by name, secrets masked: for ``ServiceInfo.settings``."""
        return {name: describe(getattr(self, name)) for name in type(self).model_fields}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments alone: what a test or a room builds must not change with the environment."""
        return (init_settings,)

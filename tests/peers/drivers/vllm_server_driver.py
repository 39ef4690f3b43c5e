"""vLLM on a CPU behind its OpenAI server: every prompt is a request of its own, all at once.

Arguments: checkpoint directory.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request

import aiohttp
from protocol import serve
from vllm_settings import dtype, environment

READY_LIMIT_S = 600
MODEL = sys.argv[1]


def start():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", dtype()),
            *("--max-model-len", "2048", "--max-num-seqs", "256", "--no-enable-prefix-caching"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            words = server.stderr.read().decode(errors="replace").strip().splitlines()
            raise SystemExit(words[-1] if words else "the server ended without a word")
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2)
            return server, url
        except OSError:
            time.sleep(0.5)
    server.kill()
    raise SystemExit(f"the server was not ready within {READY_LIMIT_S} s")


async def load(url, prompts, output_len):
    limits = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=limits, connector=connector) as session:

        async def ask(ids):
            body = {
                "model": MODEL,
                "prompt": ids,
                "max_tokens": output_len,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            last = b""
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                answer.raise_for_status()
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        last = line
            return json.loads(last[6:])["usage"]["completion_tokens"]

        return sum(await asyncio.gather(*map(ask, prompts)))


def main():
    server, url = start()
    try:
        asyncio.run(load(url, [[1, 2, 3, 4]], 4))
        import vllm

        serve(
            lambda prompts, length: asyncio.run(load(url, prompts, length)),
            {"vllm": f"{vllm.__version__} in {dtype()}"},
        )
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()

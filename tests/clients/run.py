"""Foreign clients against a running server: each in an environment of its own, a table at the end.

``python -m clients.run [NAME...]``, with tests/ on the path; ``make clients`` runs all.
The exit code is 1 when one fails.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from clients import environments
from clients.environments import BUILD, HERE, Failed, run
from clients.evaluation import TOKENIZER, compare, reference
from clients.server import Server, serving
from support.repo import ROOT

CHECKS_S = 600
AT_ONCE = 3
"""Environments in the making: most of it is waiting for packages."""


@dataclass(frozen=True)
class Client:
    """One of them.

    Attributes:
        name: Its name.
        prepare: Makes its environment; no two make the same one, for they do so beside each other.
        talk: Uses it; returns what to say of it. Both raise ``Failed``.
    """

    name: str
    prepare: Callable[[], object]
    talk: Callable[[Server], str]


def _openai_python(server: Server) -> str:
    interpreter = environments.python("openai", "openai")
    return _checks(
        run([interpreter, HERE / "openai_python.py", server.base_url, server.model], timeout_s=CHECKS_S)
    )


def _readme(server: Server) -> str:
    """The README's OpenAI section, word for word but for the address."""
    section = (ROOT / "README.md").read_text().split("\n## OpenAI clients\n")[1].split("\n## ")[0]
    snippets = re.findall(r"```(\w*)\n(.*?)```", section, re.S)
    (curl,) = [code for language, code in snippets if not language]
    (python,) = [code for language, code in snippets if language == "python"]
    environments.debian("curl")
    answer = json.loads(run(["bash", "-c", curl.replace("127.0.0.1:8000", server.http)], timeout_s=CHECKS_S))
    if not answer["choices"][0]["message"]["content"]:
        raise Failed(f"curl got {answer}")
    script = BUILD / "readme.py"
    script.write_text(python)
    interpreter = environments.python("openai", "openai")
    if not run([interpreter, script, server.base_url], timeout_s=CHECKS_S).strip():
        raise Failed("the Python example printed nothing")
    return "curl, Python"


def _openai_node(server: Server) -> str:
    node, directory = environments.node()
    command = [node, "openai_node.mjs", server.base_url, server.model]
    return _checks(run(command, timeout_s=CHECKS_S, cwd=directory, env=environments.node_variables()))


def _cpp(server: Server) -> str:
    return _checks(run([environments.cpp(), server.door], timeout_s=CHECKS_S))


def _buf_curl(server: Server) -> str:
    buf = ROOT / ".venv" / "bin" / "buf"
    call = [buf, "curl", "--schema", "proto", "--protocol", "grpc", "--http2-prior-knowledge", "-d"]
    url = f"http://{server.door}/hundredfold.v1"
    request = {"text": "The capital of France is", "sampling": {"maxTokens": 4, "temperature": 0}}
    streamed = run([*call, json.dumps(request), f"{url}.GenerationService/Generate"], timeout_s=CHECKS_S)
    if "Paris" not in streamed or '"finished"' not in streamed:
        raise Failed(f"the answer is another: {streamed[-500:]}")
    encoded = run([*call, '{"text": "Hi"}', f"{url}.TokenizerService/Encode"], timeout_s=60)
    if not json.loads(encoded)["tokenIds"]:
        raise Failed("no ids")
    wrong = json.dumps({"text": "x", "sampling": {"temperature": -1}})
    try:
        run([*call, wrong, f"{url}.GenerationService/Generate"], timeout_s=60)
    except Failed as refusal:
        if "temperature" in str(refusal):
            return "3 calls"
        raise
    raise Failed("a wrong value passed")


def _aiperf(server: Server) -> str:
    program = environments.python("aiperf", "aiperf").with_name("aiperf")
    reference()  # writes the tokenizer, unless it is there
    requests, results = 8, BUILD / "aiperf-results"
    command = [
        *(program, "profile", "--model", server.model, "--url", f"http://{server.http}"),
        *("--endpoint-type", "chat", "--streaming", "--tokenizer", TOKENIZER),
        *("--isl", "16", "--osl", "8", "--extra-inputs", "ignore_eos:true", "--random-seed", "1"),
        *("--request-count", str(requests), "--concurrency", "4", "--use-server-token-count"),
        *("--ui", "none", "--artifact-dir", results),
    ]
    # Told that it is offline, it takes no directory for a tokenizer.
    run(command, timeout_s=CHECKS_S, env={"HF_HOME": str(BUILD / "huggingface")})
    found = json.loads((results / "profile_export_aiperf.json").read_text())
    count, errors = found["request_count"]["avg"], found.get("error_request_count", {}).get("avg", 0)
    if count != requests or errors:
        raise Failed(f"{count} of {requests} requests were answered, {errors} failed")
    return (
        f"{count:g} requests, first token {found['time_to_first_token']['avg']:.0f} ms, "
        f"{found['output_token_throughput']['avg']:.1f} tokens/s"
    )


def _checks(output: str) -> str:
    count = output.count("ok: ")
    if count == 0:
        raise Failed(f"nothing was checked:\n{output[-1000:]}")
    return f"{count} checks"


CLIENTS = (
    Client("openai (Python)", lambda: environments.python("openai", "openai"), _openai_python),
    Client("README's OpenAI section", lambda: None, _readme),  # its environment is the first one's
    Client("openai (Node)", environments.node, _openai_node),
    Client("buf curl", lambda: None, _buf_curl),
    Client("C++ (Debian's gRPC)", environments.cpp, _cpp),
    Client("lm-eval", lambda: environments.python("lm-eval", "lm-eval[api]", "transformers"), compare),
    Client("aiperf", lambda: environments.python("aiperf", "aiperf"), _aiperf),
)


def _prepare(client: Client) -> None:
    began = time.monotonic()
    client.prepare()
    print(f"{client.name}: prepared in {time.monotonic() - began:.0f} s", flush=True)


def _attempt(client: Client, server: Server) -> tuple[bool, str, float]:
    began = time.monotonic()
    try:
        said, good = client.talk(server), True
    except Failed as error:
        print(f"\n--- {client.name}\n{error}", flush=True)
        said, good = str(error).splitlines()[0], False
    return good, said, time.monotonic() - began


def main(names: list[str]) -> int:
    """Prepare, serve, talk, tell; the exit code."""
    chosen = [client for client in CLIENTS if not names or any(name in client.name for name in names)]
    rows: list[tuple[Client, bool, str, float]] = []
    began = time.monotonic()
    try:
        with serving() as starting:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(_prepare, chosen))
            server = starting.ready()
            for client in chosen:
                rows.append((client, *_attempt(client, server)))
                print(f"{client.name}: {'passed' if rows[-1][1] else 'FAILED'}", flush=True)
    except Failed as error:
        print(f"\n{error}", flush=True)
        rows.append(
            (
                Client("server and environments", lambda: None, lambda _: ""),
                False,
                str(error).splitlines()[0],
                0,
            )
        )
    print(f"\n=== clients, {time.monotonic() - began:.0f} s in all")
    for client, good, said, seconds in rows:
        print(f"{client.name:24} {'passed' if good else 'FAILED':8} {seconds:5.0f} s  {said[:120]}")
    return 0 if rows and all(good for _, good, _, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

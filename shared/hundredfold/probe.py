"""Asks a service for its health and exits 0 when it serves: the check that containers run.

``python -m hundredfold.probe ADDRESS [NAME]`` asks about NAME, ``readiness`` unless given. It exits 1 and
says why when the service does not serve or does not answer, and 2 when it was called wrongly. Containers run
it often: it imports little.
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2

CHECK = "/grpc.health.v1.Health/Check"

TIMEOUT_S = 3.0
"""How long the service may take to answer."""


def probe(address: str, name: str) -> str:
    """The status of ``name`` at ``address``, such as SERVING. Raises ``grpc.RpcError`` without an answer."""
    with grpc.insecure_channel(address) as channel:
        check = channel.unary_unary(
            CHECK,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        reply = check(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT_S)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


def main(arguments: list[str]) -> int:
    """Probe once; the exit code."""
    if len(arguments) not in (1, 2):
        print("usage: python -m hundredfold.probe ADDRESS [NAME]", file=sys.stderr)
        return 2
    try:
        status = probe(arguments[0], arguments[1] if len(arguments) == 2 else "readiness")
    except grpc.RpcError as error:
        status = f"{error.code().name}: {error.details()}"
    if status != "SERVING":
        print(f"{arguments[0]} {status}", file=sys.stderr)
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

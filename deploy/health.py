"""The image's HEALTHCHECK: whether the peer in this container answers at its `health` address; exit code 0 or 1."""

import os
import sys

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

SECONDS = 10.0


def main() -> int:
    address = os.environ.get("DFL_HEALTH", "127.0.0.1:7800")
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer = HealthStub(channel).Check(HealthCheckRequest(), timeout=SECONDS, wait_for_ready=True)
        except grpc.RpcError as error:
            print(f"{address}: {error.code().name}")
            return 1
    print(HealthCheckResponse.ServingStatus.Name(answer.status))
    return 0 if answer.status == HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main())

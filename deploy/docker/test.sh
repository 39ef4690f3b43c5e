#!/usr/bin/env bash
# Builds the images, starts the Compose stack in a real Docker engine and talks to it: `make docker-test`.
#
# Uses the engine at hand; where there is none (and this is root on Debian) one of our own, see engine.sh.
# PYTHON names the interpreter with hundredfold installed, for the client side.
set -euo pipefail
cd "$(dirname "$0")/../.."

PYTHON=${PYTHON:-.venv/bin/python}
export COMPOSE_PROJECT_NAME=hundredfold-test HUNDREDFOLD_PORT=${HUNDREDFOLD_PORT:-50951}
ENGINE_WORK=
ENGINE_CACHE=${ENGINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hundredfold-docker-test}

log() { printf '[docker-test %4ss] %s\n' "$SECONDS" "$*"; }

finish() {
  local code=$?
  trap - EXIT
  if [ "$code" != 0 ]; then docker compose logs --no-color --tail 40 || true; fi
  docker compose down --volumes --timeout 5 >/dev/null 2>&1 || true
  if [ -n "$ENGINE_WORK" ]; then engine_stop; fi
  rm -f deploy/docker/wheels/*.whl
  log "finished with $code"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

if docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1; then
  log "using the engine at hand: $(docker version --format '{{.Server.Version}}')"
else
  . deploy/docker/engine.sh
  ENGINE_WORK=$(mktemp -d "${TMPDIR:-/tmp}/hundredfold-engine.XXXXXX")
  log "starting an engine"
  engine_start
  log "engine $(docker version --format '{{.Server.Version}}'), compose $(docker compose version --short)"
  # No index but the package index here: torch's wheel is what pip on this machine finds for the image's Python.
  export TORCH_INDEX_URL=
  image_python=$(docker run --rm "$PYTHON_IMAGE" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version "$image_python" --dest deploy/docker/wheels "$(grep '^torch==' constraints.txt)"
  log "torch: $(ls deploy/docker/wheels)"
fi

mkdir -p build
docker compose build >build/docker-build.log 2>&1 || { tail -n 40 build/docker-build.log; exit 1; }
log "images built: $(docker image ls --format '{{.Repository}} {{.Size}}' | grep '^hundredfold/' | sort | paste -sd, -)"

docker compose up --detach --no-build --wait --wait-timeout 300
log "the stack is healthy"
"$PYTHON" deploy/docker/smoke.py
log "smoke test passed"

# A stranger's user id with a volume of its own: it has to fetch the model, read it and serve.
docker compose down --volumes --timeout 40 >/dev/null 2>&1
HUNDREDFOLD_USER=12345:0 docker compose up --detach --no-build --wait --wait-timeout 300
"$PYTHON" deploy/docker/smoke.py --user 12345
log "served as user 12345 on a read-only root"

# Neither a network nor a name service: what is on the volume has to be enough.
docker run --detach --name hundredfold-test-offline --network none --read-only --tmpfs /tmp --user 12345:0 \
  --volume hundredfold-test_models:/cache:ro hundredfold/worker \
  worker --model smollm2-135m --listen 127.0.0.1:50053 >/dev/null
for _ in $(seq 60); do
  ready=$(docker exec hundredfold-test-offline python3 -m hundredfold.probe 127.0.0.1:50053 && echo yes || true)
  [ -z "$ready" ] || break
  sleep 1
done 2>/dev/null
docker logs --tail 5 hundredfold-test-offline
docker rm --force hundredfold-test-offline >/dev/null
[ -n "$ready" ]
log "a worker without a network got ready"

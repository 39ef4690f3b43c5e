#!/usr/bin/env bash
# Builds the images, starts the Compose stack in a real Docker engine and talks to it: `make docker-test`.
#
# Uses the engine at hand; where there is none (and this is root on Debian) one of our own, see engine.sh.
# PYTHON names the interpreter with hundredfold installed, for the client side.
set -euo pipefail
cd "$(dirname "$0")/../.."

PYTHON=${PYTHON:-.venv/bin/python}
export COMPOSE_PROJECT_NAME=hundredfold-test HUNDREDFOLD_PORT=${HUNDREDFOLD_PORT:-50951} HUNDREDFOLD_HTTP_PORT=${HUNDREDFOLD_HTTP_PORT:-50950}
STRANGER=hundredfold-test-stranger
ENGINE_WORK=
ENGINE_CACHE=${ENGINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hundredfold-docker-test}

log() { printf '[docker-test %4ss] %s\n' "$SECONDS" "$*"; }

finish() {
  local code=$?
  trap - EXIT
  if [ "$code" != 0 ]; then docker compose logs --no-color --tail 40 || true; fi
  docker compose down --volumes --timeout 5 >/dev/null 2>&1 || true
  docker rm --force "$STRANGER" >/dev/null 2>&1 || true
  docker volume rm "$STRANGER" >/dev/null 2>&1 || true
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

docker compose up --detach --no-build --no-recreate --scale worker=2 --wait --wait-timeout 300
"$PYTHON" deploy/docker/smoke.py --workers 2
log "two workers found by name, one killed under its streams"

docker compose down --timeout 40 >/dev/null 2>&1

# One container, a stranger's user id, a read-only root, a volume that this user filled, and no network at all.
stranger=(--read-only --tmpfs /tmp --user 12345:0 --cap-drop ALL)
docker run --rm "${stranger[@]}" --volume "$STRANGER:/cache" hundredfold/base models pull smollm2-135m
docker run --detach --name "$STRANGER" "${stranger[@]}" --network none --volume "$STRANGER:/cache:ro" \
  hundredfold/worker serve >/dev/null
for _ in $(seq 120); do
  answer=$(docker exec "$STRANGER" hundredfold generate hello --max-tokens 4 --temperature 0 2>/dev/null) && break
  sleep 1
done
[ -n "$answer" ] || { docker logs --tail 20 "$STRANGER"; exit 1; }
log "served as user 12345 without a network: hello$answer"
docker stop --time 40 "$STRANGER" >/dev/null
[ "$(docker inspect --format '{{.State.ExitCode}}' "$STRANGER")" = 0 ]
log "drained and ended with 0"

# A Docker engine of our own, for machines that have apt and PyPI but no engine and no image registry. Sourced.
#
#   engine_start   installs and starts it; sets DOCKER_HOST, DOCKER_CONFIG and PYTHON_IMAGE for the caller
#   engine_stop    stops it and puts the machine's network back as it was
#
# Needs root on Debian or a relative of it. Everything but the packages lies under $ENGINE_WORK, which engine_stop
# removes, and $ENGINE_CACHE, which spares the next run two downloads. The caller sets both.

# Debian 12 packages an engine, but `docker compose` and buildx as plugins only from 13 on.
ENGINE_PLUGIN_SUITE=${ENGINE_PLUGIN_SUITE:-trixie}
ENGINE_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

engine_start() {
  [ "$(id -u)" = 0 ] || { echo "a Docker engine of our own needs root; start one and try again" >&2; return 1; }
  mkdir -p "$ENGINE_WORK" "$ENGINE_CACHE"
  engine__packages
  local mirror
  mirror=$(engine__mirror)
  engine__plugins "$mirror"
  engine__daemon
  engine__base_image "$mirror"
}

engine_stop() {
  if [ -n "${ENGINE_PID:-}" ]; then
    kill "$ENGINE_PID" 2>/dev/null || true
    local _
    for _ in $(seq 120); do
      jobs -pr | grep -qx "$ENGINE_PID" || break
      sleep 0.25
    done
    kill -9 "$ENGINE_PID" 2>/dev/null || true
    # A daemon that stops leaves its bridge, its rules (FORWARD policy DROP among them) and forwarding behind.
    ip link delete docker0 2>/dev/null || true
    iptables-restore <"$ENGINE_WORK/iptables" || true
    cat "$ENGINE_WORK/ip_forward" >/proc/sys/net/ipv4/ip_forward || true
  fi
  umount "$ENGINE_WORK"/exec/netns/* 2>/dev/null || true
  rm -rf "$ENGINE_WORK"
}

engine__packages() {
  local tool missing=
  for tool in dockerd iptables debootstrap ip; do command -v "$tool" >/dev/null || missing=1; done
  [ -z "$missing" ] && return
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    docker.io iptables debootstrap iproute2 >"$ENGINE_WORK/apt.log" 2>&1 || { tail "$ENGINE_WORK/apt.log" >&2; return 1; }
}

engine__suite() { (. /etc/os-release && echo "$VERSION_CODENAME"); }

# The mirror that this machine already uses; no host is written here.
engine__mirror() {
  local query=(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' "Codename: $(engine__suite)")
  local found
  found=$("${query[@]}" | head -n 1)
  [ -n "$found" ] || { apt-get update -qq; found=$("${query[@]}" | head -n 1); }
  [ -n "$found" ] || { echo "apt knows no Debian mirror for $(engine__suite)" >&2; return 1; }
  echo "$found"
}

# The plugins are single files of a newer release, unpacked beside the engine; nothing on the machine is upgraded.
engine__plugins() {
  local mirror=$1 apt=$ENGINE_WORK/apt plugins=$ENGINE_CACHE/plugins
  if [ ! -x "$plugins/docker-compose" ] || [ ! -x "$plugins/docker-buildx" ]; then
    mkdir -p "$apt"/{lists,archives}/partial "$apt/unpacked" "$plugins"
    echo "deb [signed-by=$ENGINE_KEYRING] $mirror $ENGINE_PLUGIN_SUITE main" >"$apt/sources.list"
    local options=(
      -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/nonexistent
      -o Dir::State::Lists="$apt/lists" -o Dir::Cache::Archives="$apt/archives"
      -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root
    )
    apt-get "${options[@]}" update -qq
    (cd "$apt" && apt-get "${options[@]}" download -qq docker-compose docker-buildx)
    local package
    for package in "$apt"/*.deb; do dpkg-deb --extract "$package" "$apt/unpacked"; done
    install -m 755 "$apt"/unpacked/usr/libexec/docker/cli-plugins/docker-{compose,buildx} "$plugins/"
    rm -rf "$apt"
  fi
  export DOCKER_CONFIG=$ENGINE_WORK/config
  mkdir -p "$DOCKER_CONFIG"
  ln -sfn "$plugins" "$DOCKER_CONFIG/cli-plugins"
}

# The packet filter as it is, a table that does not exist yet as an empty one.
engine__save_rules() {
  local saved
  saved=$(iptables-save 2>/dev/null)
  [ -z "$saved" ] || echo "$saved"
  grep -q '^\*filter' <<<"$saved" || printf '%s\n' '*filter' ':INPUT ACCEPT' ':FORWARD ACCEPT' ':OUTPUT ACCEPT' COMMIT
  grep -q '^\*nat' <<<"$saved" || printf '%s\n' '*nat' ':PREROUTING ACCEPT' ':INPUT ACCEPT' ':OUTPUT ACCEPT' \
    ':POSTROUTING ACCEPT' COMMIT
}

engine__daemon() {
  engine__save_rules >"$ENGINE_WORK/iptables"
  cat /proc/sys/net/ipv4/ip_forward >"$ENGINE_WORK/ip_forward"
  export DOCKER_HOST=unix://$ENGINE_WORK/docker.sock DOCKER_BUILDKIT=1 BUILDX_NO_DEFAULT_ATTESTATIONS=1
  dockerd --host "$DOCKER_HOST" --pidfile "$ENGINE_WORK/docker.pid" \
    --data-root "$ENGINE_WORK/data" --exec-root "$ENGINE_WORK/exec" >"$ENGINE_WORK/dockerd.log" 2>&1 &
  ENGINE_PID=$!
  local _
  for _ in $(seq 120); do
    docker version >/dev/null 2>&1 && return
    sleep 0.25
  done
  tail -n 20 "$ENGINE_WORK/dockerd.log" >&2
  return 1
}

# What python:3.12-slim is elsewhere: a small Debian with Python, made from packages instead of pulled.
engine__base_image() {
  local mirror=$1 suite root=$ENGINE_WORK/root
  suite=$(engine__suite)
  local tarball=$ENGINE_CACHE/python-$suite.tar
  if [ ! -s "$tarball" ]; then
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$root" "$mirror" \
      >"$ENGINE_WORK/debootstrap.log" 2>&1 || { tail -n 5 "$ENGINE_WORK/debootstrap.log" >&2; return 1; }
    tar --create --file "$tarball.part" --directory "$root" --exclude='./var/cache/apt/*' \
      --exclude='./var/lib/apt/lists/*' --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' \
      --exclude='./usr/share/locale/*' .
    mv "$tarball.part" "$tarball"
    rm -rf "$root"
  fi
  docker import "$tarball" hundredfold-base:bare >/dev/null
  # pip in a container has to reach and trust what pip on this machine does.
  local context=$ENGINE_WORK/base
  mkdir -p "$context"
  cp /etc/ssl/certs/ca-certificates.crt "$context/"
  {
    echo "FROM hundredfold-base:bare"
    echo "COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt"
    echo "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DEFAULT_TIMEOUT=120"
    if [ -n "${PIP_INDEX_URL:-}" ]; then echo "ENV PIP_INDEX_URL=$PIP_INDEX_URL"; fi
  } >"$context/Dockerfile"
  export PYTHON_IMAGE=hundredfold-base:python
  docker build --quiet --tag "$PYTHON_IMAGE" "$context" >/dev/null
}

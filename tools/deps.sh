#!/usr/bin/env bash
# Installs what the build and the tests need: Debian packages by name, and from PyPI into .deps/ oneDNN 3, where the distribution
# has only version 2, and xgrammar, whose C++ sources are built once (a minute). Uses sudo only when not root. Does nothing where
# everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake make ninja-build ccache pkg-config git python3 python3-pip unzip
  libhwy-dev libyaml-cpp-dev libcli11-dev nlohmann-json3-dev libspdlog-dev libpcre2-dev libutf8proc-dev
  libssl-dev openssl liburing-dev libxxhash-dev libcairo2-dev prometheus-cpp-dev libjs-pdf libjs-markdown-it libedit-dev curl fonts-dejavu-core
  libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev clang libclang-rt-14-dev)
# Asio and Beast, headers alone: the newest that the distribution has.
if apt-cache show libboost1.81-dev >/dev/null 2>&1; then packages+=(libboost1.81-dev); else packages+=(libboost-dev); fi

missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if ((${#missing[@]})); then
  echo "installing Debian packages: ${missing[*]}"
  as_root=""
  [ "$(id -u)" = 0 ] || as_root=sudo
  $as_root apt-get update -q
  DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q --no-install-recommends "${missing[@]}"
fi

# oneDNN: the distribution's own if it is version 3, else the PyPI wheels of 3.2.0 (one copy of the library kept).
onednn=.deps/onednn
if [ ! -f "$onednn/lib/libdnnl.so.3" ] && ! ls /usr/lib/*/libdnnl.so.3 /usr/lib/libdnnl.so.3 >/dev/null 2>&1; then
  echo "fetching oneDNN 3.2.0 from PyPI into $onednn"
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  python3 -m pip download -q --no-deps --disable-pip-version-check -d "$tmp" \
    onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0
  for wheel in "$tmp"/*.whl; do unzip -q -o "$wheel" -d "$tmp/unpacked"; done
  rm -rf "$onednn" && mkdir -p "$onednn"
  for data in "$tmp"/unpacked/*.data/data; do cp -r "$data"/. "$onednn"/; done
  # The wheel holds three copies of one file where links belong.
  rm "$onednn"/lib/libdnnl.so "$onednn"/lib/libdnnl.so.3
  mv "$onednn"/lib/libdnnl.so.3.2 "$onednn"/lib/libdnnl.so.3
  ln -s libdnnl.so.3 "$onednn"/lib/libdnnl.so
  ln -s libdnnl.so.3 "$onednn"/lib/libdnnl.so.3.2
fi

xgrammar=.deps/xgrammar
if [ ! -f "$xgrammar/lib/libxgrammar.a" ]; then
  echo "fetching xgrammar 0.2.8 from PyPI and building it into $xgrammar"
  sources=$(mktemp -d)
  trap 'rm -rf "${tmp:-}" "$sources"' EXIT
  python3 -m pip download -q --no-deps --disable-pip-version-check --no-binary xgrammar -d "$sources" xgrammar==0.2.8
  tar xzf "$sources"/xgrammar-0.2.8.tar.gz -C "$sources"
  cmake -S cmake/xgrammar -B "$sources/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
    -DXGRAMMAR_SOURCE="$sources/xgrammar-0.2.8" -DCMAKE_INSTALL_PREFIX="$PWD/$xgrammar" >/dev/null
  cmake --build "$sources/build" --target install >/dev/null
fi

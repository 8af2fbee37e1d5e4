#!/bin/sh
# Installs the servers that the tests of object storage and Spark talk to, into .servers/. A part that cannot be had is reported
# and left out; its tests are skipped then. Run again, it does only what is missing.
set -u
cd "$(dirname "$0")/../.."
python=${1:-python3}
azurite=3.37.0
missing=""
mkdir -p .servers

report() { missing="$missing\n  $1"; }

wanted=$(cksum < tests/servers/requirements.txt)
if [ "$(cat .servers/python.built 2>/dev/null)" != "$wanted" ]; then
    rm -rf .servers/python .servers/python.built
    if "$python" -m venv .servers/python &&
        .servers/python/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
            -r tests/servers/requirements.txt; then
        echo "$wanted" > .servers/python.built
    else
        report "moto and Swift: pip could not install them"
    fi
fi

# What executors of a Spark cluster have: not what the driver has. The tests add the project itself, as a wheel.
wanted=$(cat requirements.lock requirements-spark.lock | cksum)
if [ "$(cat .servers/executors.built 2>/dev/null)" != "$wanted" ]; then
    rm -rf .servers/executors .servers/executors.built
    if "$python" -m venv .servers/executors &&
        .servers/executors/bin/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes \
            -r requirements.lock -r requirements-spark.lock; then
        echo "$wanted" > .servers/executors.built
    else
        report "executors of Spark: pip could not install them"
    fi
fi

if [ "$(cat .servers/azurite.built 2>/dev/null)" != "$azurite" ]; then
    rm -rf .servers/azurite .servers/azurite.built
    if ! command -v npm >/dev/null; then
        report "Azurite: there is no npm"
    elif npm install --prefix .servers/azurite --no-audit --no-fund --loglevel=error "azurite@$azurite" >/dev/null; then
        echo "$azurite" > .servers/azurite.built
    else
        report "Azurite: npm could not install it"
    fi
fi

# Unpacked, not installed: nothing outside .servers/ changes, and nobody must be root.
if ! command -v redis-server >/dev/null && [ ! -x .servers/redis/usr/bin/redis-server ]; then
    rm -rf .servers/redis .servers/redis.new
    mkdir -p .servers/redis.new/packages .servers/redis.new/root
    if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
        report "Redis: no redis-server on the PATH, and no apt-get to fetch one"
    elif (cd .servers/redis.new/packages && apt-get -qq download redis-server redis-tools libatomic1 libhiredis0.14 \
        libjemalloc2 liblua5.1-0 liblzf1 lua-bitop lua-cjson 2>/dev/null) &&
        for package in .servers/redis.new/packages/*.deb; do
            dpkg -x "$package" .servers/redis.new/root || exit 1
        done; then
        mv .servers/redis.new/root .servers/redis
    else
        report "Redis: apt-get could not fetch it"
    fi
    rm -rf .servers/redis.new
fi

if [ -n "$missing" ]; then
    printf "These servers could not be had; their tests are skipped:$missing\n" >&2
fi

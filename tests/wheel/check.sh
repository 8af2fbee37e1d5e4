#!/bin/sh
# Installs the wheel as a user would, into an empty environment: bare, then with each extra. What the README and the docs promise
# of each must work there. The versions are those of the lock files. Usage: check.sh WHEEL PYTHON
set -eu
wheel=$(realpath "$1")
python=$(realpath -s "$2")
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
sed -E '/^ +--hash/d; s/ *\\$//' requirements.lock requirements-dev.lock requirements-spark.lock | sort -u > "$room/versions.txt"

add() { "$room/env/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -c "$room/versions.txt" "$@"; }

"$python" -m venv "$room/env"
cp "$here"/*.py "$room"
cd "$room"  # nothing of the checkout is in reach
echo "wheel: bare, with pytest"
add "$wheel" pytest
env/bin/danube --help > /dev/null
env/bin/python quickstart.py
env/bin/python -m pytest -q -p no:cacheprovider kit.py
for extra in arrow objects delta spark pipeline; do
    echo "wheel: [$extra]"
    add "$wheel[$extra]"
    env/bin/python extras.py "$extra"
done

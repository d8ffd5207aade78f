#!/bin/sh
# Install a JupyterHub for the course into hub/, beside the course itself: its packages stay out of
# the course's .venv, and each learner's kernel is that .venv. Call it again after an update.
set -eu
cd "$(dirname "$0")/.."

if [ ! -x .venv/bin/python ]; then
    echo "hub: the course is not installed yet: run make setup first" >&2
    exit 1
fi
if ! command -v npm >/dev/null; then
    echo "hub: JupyterHub's proxy needs Node.js 20 or later with npm: install them first" >&2
    exit 1
fi
wanted=$(cat hub/requirements.txt hub/package-lock.json | cksum)
if [ "$(cat hub/.venv/installed 2>/dev/null)" != "$wanted" ]; then
    [ -x hub/.venv/bin/python ] || .venv/bin/python -m venv hub/.venv
    hub/.venv/bin/python -m pip install --quiet --requirement hub/requirements.txt
    npm ci --prefix hub --no-audit --no-fund --loglevel=error
    echo "$wanted" >hub/.venv/installed
fi
# "Python 3" in a notebook is the course's.
.venv/bin/python -c "from ipykernel.kernelspec import install; install(prefix=\"hub/.venv\")"
echo "JupyterHub for the course is installed in hub/"

#!/bin/sh
# Remove what `make` made. The learner's workspace/ and downloaded data sets stay.
set -eu

rm -rf .venv .runtime build dist ./*.egg-info packages/*/build packages/*/src/*.egg-info .pytest_cache .ruff_cache .coverage
rm -rf .mypy_cache benchmarks/scratch test-results site/.venv site/node_modules site/build
find . -path ./workspace -prune -o -path ./data/downloads -prune -o -path ./.git -prune \
    -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
echo "Removed .venv and other files made by make; workspace/ and data/downloads/ were left."

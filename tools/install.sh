#!/bin/sh
# Find a Python that the course supports and let it install the course: tools/install.py.
# This part is in shell because it also runs where there is no such Python, to say so.
# PYTHON=/path/to/python chooses one by hand.
set -u

supported='import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] < (3, 15)))'
version='import sys; print("%d.%d.%d" % sys.version_info[:3])'

seen=
if [ -z "${PYTHON:-}" ]; then
    # At last one of those that uv keeps; it downloads none.
    kept=$(uv python find --system --offline --no-project '>=3.11,<3.15' 2>/dev/null) || kept=
    set -- python3 python3.14 python3.13 python3.12 python3.11 python ${kept:+"$kept"}
else
    set -- "$PYTHON"
fi
for candidate in "$@"; do
    found=$("$candidate" -c "$version" 2>/dev/null) || continue
    if "$candidate" -c "$supported" 2>/dev/null; then
        exec "$candidate" tools/install.py
    fi
    seen="$seen $candidate is $found;"
done

echo "make: the course needs Python 3.11 to 3.14." >&2
if [ -n "$seen" ]; then
    echo "  Found here:$seen none fits." >&2
else
    echo "  No Python was found (tried: $*)." >&2
fi
echo "  Install one: 'apt install python3 python3-venv' (Debian, Ubuntu)," >&2
echo "  'brew install python@3.13' (macOS), 'uv python install 3.13', or conda: see environment.yml." >&2
echo "  If it is in an unusual place: make lab PYTHON=/path/to/python3.12" >&2
exit 1

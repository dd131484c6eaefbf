#!/usr/bin/env bash
# Builds docs/ as a site with search, in build/site:
#     scripts/site.sh
# A broken link, or a page without a place in the navigation, is an error. The tools come from PyPI into .deps/site.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

wanted=(mkdocs==1.6.1 mkdocs-material==9.7.0 mdx-truly-sane-lists==1.3)
stamp="${wanted[*]} in $(readlink -f .deps)"
if [ "$(cat .deps/site/stamp 2>/dev/null)" != "$stamp" ]; then
    say "Getting ${wanted[*]} from PyPI"
    rm -rf .deps/site
    python3 -m venv .deps/site
    .deps/site/bin/python -m pip install --quiet --disable-pip-version-check --no-input "${wanted[@]}" </dev/null ||
        fail "pip could not install: ${wanted[*]}"
    echo "$stamp" >.deps/site/stamp
fi
.deps/site/bin/python -m mkdocs --quiet build --strict --config-file scripts/mkdocs.yml
say "The site is in build/site: open build/site/index.html"

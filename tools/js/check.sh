#!/usr/bin/env bash
# Lints the live page's JavaScript, and checks its types. Without npm, or without its registry, it says so and passes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
if ! command -v npm >/dev/null; then echo "no npm here: the page's JavaScript is not linted"; exit 0; fi
if [ ! -x node_modules/.bin/eslint ] || [ ! -x node_modules/.bin/tsc ]; then
  timeout 300 npm install --no-audit --no-fund --no-package-lock --silent >/dev/null 2>&1 ||
    { echo "npm could not install the linter: the page's JavaScript is not linted"; exit 0; }
fi
rm -rf checked && cp -r ../../src/sdfeel/dashboard/static checked && rm -rf checked/vendor
trap 'rm -rf checked' EXIT
node_modules/.bin/eslint checked
node_modules/.bin/tsc -p .
echo "the page's JavaScript is clean"

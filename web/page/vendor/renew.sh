#!/bin/bash
# Fetches the libraries of the chat page from npm and writes them here: `make vendor`. Needs node and npm.
# To take a newer version, change it here, run this, and put the printed table into README.md.
set -euo pipefail

MARKDOWN_IT=15.0.3
TEMML=0.13.5
MODES=6.5.5 # @codemirror/legacy-modes
STIX=5.3.0  # @fontsource/stix-two-math
ESBUILD=0.28.2
SUBSET_FONT=2.9.0
LANGUAGES="clike cmake css diff dockerfile go groovy haskell http javascript julia lua mllike nginx octave
  perl powershell properties protobuf python r ruby rust shell simple-mode sql stex swift toml xml yaml"
# What TeX needs of the font, in Unicode: letters, Greek, arrows, operators, brackets; italic, bold, script, double-struck.
GLYPHS=20-7e,a0-b7,d7,f7,131,237,300-308,30a,30c,332,338,391-3d6,3f0-3f5,2002-200a,2016,2020-2026,2032-2037,2044,2057,\
2061-2064,20d0-20d7,20db,20dc,210b-211d,2124,2128,212c,2130-2134,2190-21d5,21e0-21e9,2200-22ff,2308-230b,239b-23ae,\
23b4-23b5,23d0,23dc-23e1,25a0-25a1,25b2-25b3,25c6-25cb,2660-2666,27e8-27eb,27f5-27fc,2a00-2a06,2a0c,2a3f,2a7d-2a7e,\
2aaf-2ab0,1d400-1d467,1d49c-1d4b5,1d538-1d551,1d6a4-1d6a5,1d6e2-1d71b

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fetch() { # fetch PACKAGE VERSION: its files in ./NAME
  local name=${1##*/}
  mkdir "$name"
  tar xzf "$(npm pack --silent "$1@$2")" -C "$name" --strip-components 1
}
fetch markdown-it "$MARKDOWN_IT"
fetch temml "$TEMML"
fetch @codemirror/legacy-modes "$MODES"
fetch @fontsource/stix-two-math "$STIX"
npm install --silent --no-save "esbuild@$ESBUILD" "subset-font@$SUBSET_FONT" "markdown-it@$MARKDOWN_IT"
minify() { node_modules/.bin/esbuild --minify --format=esm --charset=utf8 --log-level=error; }

rm -rf "$here"/{markdown-it,temml,modes,stix}
mkdir "$here"/{markdown-it,temml,modes,stix}
for part in markdown-it entities linkify-it mdurl punycode.js uc.micro; do # what its bundle holds
  echo "== $part" && cat node_modules/"$part"/LICENSE* && echo
done > "$here/markdown-it/LICENSE"
sed '/^\/\/# sourceMappingURL=/d' markdown-it/dist/browser/markdown-it.esm.min.mjs > "$here/markdown-it/markdown-it.js"
cp temml/LICENSE "$here/temml/"
{ cat temml/dist/temml.min.js && echo && echo "export default temml;"; } > "$here/temml/temml.js"
cp stix-two-math/LICENSE "$here/stix/"
cat > subset.mjs <<'END'
import { readFileSync, writeFileSync } from "node:fs";
import subset from "subset-font";
const [from, to, glyphs] = process.argv.slice(2);
let text = "";
for (const range of glyphs.split(",")) {
  const [first, last = first] = range.split("-").map((code) => parseInt(code, 16));
  for (let code = first; code <= last; code++) text += String.fromCodePoint(code);
}
writeFileSync(to, await subset(readFileSync(from), text, { targetFormat: "woff2", noLayoutClosure: true }));
END
node subset.mjs stix-two-math/files/stix-two-math-latin-400-normal.woff2 "$here/stix/stix-two-math.woff2" "$GLYPHS"
cp legacy-modes/LICENSE "$here/modes/"
for language in $LANGUAGES; do
  minify < "legacy-modes/mode/$language.js" > "$here/modes/$language.js"
done

cd "$here"
echo "| file | bytes | sha256 |"
echo "|---|---:|---|"
for file in markdown-it/*.js temml/*.js stix/*.woff2 modes/*.js; do
  echo "| $file | $(stat -c %s "$file") | $(sha256sum "$file" | cut -c 1-64) |"
done

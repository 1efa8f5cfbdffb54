// Which of CodeMirror's modes colours a language: the names that models write after ```, the file of the mode, its export.

const MODES = `
c h, clike, c
cpp c++ cc cxx hpp, clike, cpp
csharp cs c#, clike, csharp
java, clike, java
kotlin kt kts, clike, kotlin
scala, clike, scala
dart, clike, dart
objectivec objc objective-c, clike, objectiveC
glsl hlsl shader, clike, shader
cmake, cmake, cmake
css, css, css
scss sass, css, sCSS
less, css, less
diff patch, diff, diff
dockerfile docker, dockerfile, dockerFile
go golang, go, go
groovy gradle, groovy, groovy
haskell hs, haskell, haskell
http, http, http
javascript js jsx mjs cjs node, javascript, javascript
typescript ts tsx, javascript, typescript
json jsonc json5 jsonl, javascript, json
julia jl, julia, julia
lua, lua, lua
ocaml ml, mllike, oCaml
fsharp fs f#, mllike, fSharp
nginx, nginx, nginx
matlab octave, octave, octave
perl pl, perl, perl
powershell ps1 pwsh, powershell, powerShell
ini properties conf env, properties, properties
protobuf proto, protobuf, protobuf
python py python3 pycon, python, python
cython pyx, python, cython
r, r, r
ruby rb, ruby, ruby
rust rs, rust, rust
bash sh shell zsh console shell-session makefile make, shell, shell
sql, sql, standardSQL
mysql mariadb, sql, mySQL
postgres postgresql pgsql plpgsql, sql, pgSQL
sqlite, sql, sqlite
tsql mssql, sql, msSQL
plsql, sql, plSQL
latex tex, stex, stex
swift, swift, swift
toml, toml, toml
html htm xhtml vue svelte, xml, html
xml svg rss plist, xml, xml
yaml yml, yaml, yaml
`;

const byName = new Map();
for (const line of MODES.trim().split("\n")) {
  const [names, file, name] = line.split(", ");
  for (const alias of names.split(" ")) byName.set(alias, { file, name });
}

export const LANGUAGES = [...byName.keys()];

// The mode of a language, or null where there is none or it cannot be loaded.
export async function modeOf(language) {
  const known = byName.get(language.toLowerCase());
  if (!known) return null;
  try {
    const modes = await import(`../vendor/modes/${known.file}.js`);
    return modes[known.name];
  } catch {
    return null; // the server is away: the code stays without colours
  }
}

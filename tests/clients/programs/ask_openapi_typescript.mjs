// openapi-typescript and openapi-fetch: types generated from /openapi.json, and a program that tsc accepts with them.
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { fileURLToPath, pathToFileURL } from "node:url";

const modules = fileURLToPath(new URL("../node_modules", import.meta.url));
mkdirSync(`${modules}/.cache`, { recursive: true });
const folder = mkdtempSync(`${modules}/.cache/triolet-`); // below node_modules, so that imports are found
try {
  copyFileSync(fileURLToPath(new URL("typed_chat.mts", import.meta.url)), `${folder}/typed_chat.mts`);
  const run = (tool, ...words) => execFileSync(`${modules}/.bin/${tool}`, words, { cwd: folder, stdio: ["ignore", 2, 2] });
  run("openapi-typescript", `${process.argv[2]}/openapi.json`, "-o", "openapi.d.ts");
  run("tsc", "--strict", "--skipLibCheck", "--target", "es2022", "--lib", "es2022,dom,dom.iterable",
    "--module", "nodenext", "typed_chat.mts");
  const { chat } = await import(pathToFileURL(`${folder}/typed_chat.mjs`));
  console.log(JSON.stringify(await chat(process.argv[2])));
} finally {
  rmSync(folder, { recursive: true });
}

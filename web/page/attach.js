// Attaching text files to what is being typed: with the button, by dropping them on the page, by pasting them.

import { withFiles } from "./attached.js";
import { $, button, icon, make } from "./dom.js";
import { toast } from "./panels.js";

const LONGEST_TOKEN = 16; // bytes a token of a text has at most, on the average: larger files are not read

// onChange() hears of files that came or went. tokensOf(text) resolves to { tokens, room } of a question with this text,
// where they are not known, undefined and Infinity. Returns { files(), show(files) }.
export function setUpAttaching({ onChange, tokensOf }) {
  let files = [];

  function show(shown) {
    files = shown;
    $("attached").hidden = files.length === 0;
    $("attached").replaceChildren(...files.map((file) => {
      const item = make("li", "chip");
      const remove = button("chip-remove", "close", "", () => {
        change(files.filter((other) => other !== file));
        $("prompt").focus();
      });
      remove.setAttribute("aria-label", `Remove ${file.name}`);
      item.append(icon("clip"), make("span", "chip-name", file.name), remove);
      if (file.tokens) remove.before(make("span", "fine", `${file.tokens.toLocaleString("en")} tokens`));
      return item;
    }));
  }

  function change(changed) {
    show(changed);
    onChange();
  }

  let adding = Promise.resolve();
  const add = (list) => {
    adding = adding.then(() => addAll(list)); // one after another, so that each is measured with all that came before it
  };

  async function addAll(list) {
    const problems = [];
    for (const file of list) {
      try {
        const added = await read(file, files, tokensOf);
        change([...files.filter(({ name }) => name !== added.name), added]);
      } catch (error) {
        problems.push(error.message);
      }
    }
    if (problems.length > 0) toast(problems.join(" "));
    $("prompt").focus();
  }

  $("attach").addEventListener("click", () => $("attach-file").click());
  $("attach-file").addEventListener("change", () => {
    const chosen = [...$("attach-file").files];
    $("attach-file").value = ""; // so that the same file can be chosen again
    add(chosen);
  });
  $("prompt").addEventListener("paste", (event) => {
    const { files: pasted, types } = event.clipboardData;
    if (pasted.length === 0 || types.includes("text/plain")) return; // text from an office program has a picture with it
    event.preventDefault();
    add([...pasted]);
  });
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files") && !document.querySelector("dialog[open]");
  const over = (is) => $("composer").classList.toggle("drop", is);
  addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault(); // the browser would open the file instead of the page
    over(true);
  });
  addEventListener("dragleave", (event) => event.relatedTarget === null && over(false));
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    over(false);
    add([...event.dataTransfer.files]);
  });
  return { files: () => files, show };
}

// { name, text, tokens }. Throws an Error that says why the file cannot be part of the question.
async function read(file, others, tokensOf) {
  const name = file.name.replace(/[\p{Cc}\p{Zl}\p{Zp}]+/gu, " ").trim() || "file";
  const beside = others.filter((other) => other.name !== name);
  const { room } = await tokensOf("");
  if (file.size > room * LONGEST_TOKEN) throw new Error(tooLong(name, `${file.size.toLocaleString("en")} bytes`, room));
  const text = await textOf(file, name);
  const { tokens } = await tokensOf(withFiles([{ name, text }], ""));
  if (tokens > room) throw new Error(tooLong(name, tokens === Infinity ? `${file.size.toLocaleString("en")} bytes` : `${tokens.toLocaleString("en")} tokens`, room));
  const together = beside.length > 0 ? await tokensOf(withFiles([...beside, { name, text }], "")) : { tokens };
  if (together.tokens > room) throw new Error(`“${name}” does not fit beside the other files. Remove one of them, or attach a shorter file.`);
  return { name, text, tokens };
}

async function textOf(file, name) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new TypeError("binary");
    if (text.trim()) return text;
  } catch (error) {
    if (!(error instanceof TypeError)) throw new Error(`“${name}” cannot be read. A folder cannot be attached, only files.`);
    throw new Error(`“${name}” is not a text file. Only plain text in UTF-8 can be attached.`);
  }
  throw new Error(`“${name}” is empty.`);
}

const tooLong = (name, size, room) => `“${name}” is too long: ${size}, and the model's context has room for ${room.toLocaleString("en")} tokens. Attach a part of it.`;

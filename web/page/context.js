// How much of the model's context the conversation takes, counted by the server with what is being typed.

import { $ } from "./dom.js";
import { ask } from "./server.js";

const PAUSE_MS = 300; // of typing, before it is counted
const REMEMBERED = 16;

const counted = new Map(); // the request's text -> tokens

// The tokens of a request's prompt. Throws where the server cannot say.
export async function countTokens({ model, messages, continue_final_message, tools }) {
  const body = { model, messages, continue_final_message, tools };
  const key = JSON.stringify(body);
  if (!counted.has(key)) {
    const { count } = await ask("tokenize", body);
    counted.set(key, count);
    if (counted.size > REMEMBERED) counted.delete(counted.keys().next().value);
  }
  return counted.get(key);
}

let timer = 0;
let turn = 0;

// `growing`: tokens of the running answer, which are not in the request.
export function showContext(request, limit, growing = 0) {
  clearTimeout(timer);
  turn += 1;
  const mine = turn;
  if (!limit || request.messages.length === 0) {
    $("context").textContent = "";
    return;
  }
  timer = setTimeout(async () => {
    const tokens = await countTokens(request).catch(() => null);
    if (mine !== turn) return;
    const used = (tokens ?? 0) + growing;
    const words = `${used.toLocaleString("en")} of ${limit.toLocaleString("en")} tokens`;
    $("context").textContent = tokens === null ? "" : `${words}${used > limit ? ": the oldest are left out" : ""}`;
    $("context").dataset.over = String(used > limit);
  }, PAUSE_MS);
}

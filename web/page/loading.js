// While the server loads its model: a bar at the top of the page, with the server's own words.

import { $, make } from "./dom.js";

const ASK_MS = 500;

// Resolves when the model is loaded, and when the server says anything else: callers handle that as always.
export async function untilLoaded(key) {
  for (;;) {
    const loading = await ask(key);
    show(loading);
    if (loading === null) return;
    await new Promise((resolve) => setTimeout(resolve, ASK_MS));
  }
}

async function ask(key) {
  try {
    const response = await fetch("health/ready", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
    if (response.status !== 503) return null;
    const { error } = await response.json();
    return error?.code === "model_loading" ? (error.loading ?? {}) : null;
  } catch {
    return null;
  }
}

function show(loading) {
  let bar = $("loading");
  if (loading === null) {
    bar?.remove();
    return;
  }
  if (!bar) {
    bar = make("div", "loading");
    bar.id = "loading";
    bar.append(make("progress"), make("span"));
    document.body.append(bar);
  }
  const { stage = "starting", share = 0, seconds_left: left } = loading;
  const [progress, words] = bar.children;
  if (share > 0) progress.value = share;
  else progress.removeAttribute("value"); // a moving bar: how far it is, nobody knows
  progress.setAttribute("aria-label", "Loading the model");
  const time = left ? `, about ${Math.ceil(left)} s` : "";
  const text = `Loading the model: ${stage}${share > 0 ? ` ${Math.floor(100 * share)} %` : ""}${time}`;
  if (words.textContent !== text) words.textContent = text;
}

// Shared by both pages: the theme, and the prompt for a key.

import { saveTheme } from "./store.js";
import { $, make } from "./dom.js";

const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

export function setUpTheme() {
  const show = () => {
    const theme = document.documentElement.dataset.theme;
    $("theme-label").textContent = THEMES[theme];
    $("theme-icon").setAttribute("href", `#icon-${{ auto: "auto", light: "sun", dark: "moon" }[theme]}`);
  };
  $("theme").addEventListener("click", () => {
    const order = Object.keys(THEMES);
    const next = order[(order.indexOf(document.documentElement.dataset.theme) + 1) % order.length];
    document.documentElement.dataset.theme = next;
    saveTheme(next);
    show();
  });
  show();
}

const KEPT = "It is kept in this tab until you close it.";
const WRONG = "The server did not accept that key. Please check it and try again.";

// Asks for the key; resolves when one was entered.
export function askForKey(wrong) {
  const dialog = $("key-dialog") ?? keyDialog();
  $("key-note").textContent = wrong ? WRONG : KEPT;
  $("key").value = "";
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    $("key-form").addEventListener("submit", () => resolve($("key").value.trim()), { once: true });
  });
}

function keyDialog() {
  const dialog = named(make("dialog", "dialog"), "key-dialog");
  dialog.setAttribute("aria-labelledby", "key-title");
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  const form = named(make("form"), "key-form");
  form.method = "dialog";
  const label = make("label", "hidden", "API key");
  label.htmlFor = "key";
  const input = named(make("input"), "key");
  input.type = "password";
  input.autocomplete = "off";
  input.required = true;
  const title = named(make("h2", "", "This server asks for an API key"), "key-title");
  form.append(title, named(make("p"), "key-note"), label, input, make("button", "solid-button", "Continue"));
  dialog.append(form);
  document.body.append(dialog);
  return dialog;
}

function named(node, id) {
  node.id = id;
  return node;
}

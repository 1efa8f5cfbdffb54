// Everything around the conversation: theme, side bar on a narrow screen, settings, the question for a key, the toast.

import { loadSettings, saveSettings, saveTheme } from "./store.js";
import { $ } from "./view.js";

const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

export function setUpTheme() {
  const show = () => {
    const theme = document.documentElement.dataset.theme;
    $("theme-label").textContent = THEMES[theme];
    $("theme-icon").setAttribute("href", { auto: "#icon-auto", light: "#icon-sun", dark: "#icon-moon" }[theme]);
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

export function setUpSidebar() {
  const set = (open) => {
    $("sidebar").classList.toggle("open", open);
    $("scrim").hidden = !open;
    $("open-sidebar").setAttribute("aria-expanded", String(open));
  };
  $("open-sidebar").addEventListener("click", () => {
    set(true);
    $("close-sidebar").focus();
  });
  $("close-sidebar").addEventListener("click", () => {
    set(false);
    $("open-sidebar").focus();
  });
  $("scrim").addEventListener("click", () => set(false));
  $("sidebar").addEventListener("keydown", (event) => event.key === "Escape" && set(false));
  return () => set(false);
}

// Returns a function that gives the current settings: `system` and the parameters that were filled in, as numbers.
export function setUpSettings() {
  const form = $("settings-form");
  const fields = [...form.elements].filter((field) => field.name);
  const toggle = (open) => {
    $("settings").hidden = !open;
    $("open-settings").setAttribute("aria-expanded", String(open));
    $(open ? "set-system" : "open-settings").focus();
  };
  $("open-settings").addEventListener("click", () => toggle($("settings").hidden));
  $("close-settings").addEventListener("click", () => toggle(false));
  $("settings").addEventListener("keydown", (event) => event.key === "Escape" && toggle(false));
  form.addEventListener("submit", (event) => event.preventDefault());
  const saved = loadSettings();
  for (const field of fields) field.value = saved[field.name] ?? "";
  const collect = () => Object.fromEntries(fields.filter((f) => f.value !== "").map((f) => [f.name, f.value]));
  form.addEventListener("input", () => saveSettings(collect()));
  form.addEventListener("reset", () => setTimeout(() => saveSettings(collect())));
  return () => {
    const { system = "", ...sampling } = collect();
    const valid = Object.entries(sampling).filter(([name]) => form.elements[name].validity.valid);
    return { system: system.trim(), sampling: Object.fromEntries(valid.map(([name, value]) => [name, Number(value)])) };
  };
}

// Asks for the key; resolves once one was typed.
export function askForKey(wrong) {
  const dialog = $("key-dialog");
  $("key-note").textContent = wrong
    ? "The server did not accept that key. Please check it and try again."
    : "It is kept in this tab until you close it.";
  $("key").value = "";
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    $("key-form").addEventListener("submit", () => resolve($("key").value.trim()), { once: true });
  });
}

let toastTimer = 0;

export function toast(text, actionLabel, action) {
  clearTimeout(toastTimer);
  const hide = () => {
    $("toast").hidden = true;
  };
  $("toast-text").textContent = text;
  $("toast-action").hidden = !action;
  $("toast-action").textContent = actionLabel ?? "";
  $("toast-action").onclick = () => {
    hide();
    action();
  };
  $("toast").hidden = false;
  toastTimer = setTimeout(hide, 6000);
}

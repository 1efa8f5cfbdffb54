// Everything around the conversation: side bar on a narrow screen, settings, the toast.

import { loadSettings, saveSettings } from "./store.js";
import { $ } from "./view.js";

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

// Returns a function that gives the current settings: `system`, and the parameters that were filled in, as numbers.
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

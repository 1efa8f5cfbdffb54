// Sets the theme before the first paint, so that a dark page never flashes light. Loaded in <head>, not as a module.
"use strict";
(() => {
  let chosen = "auto";
  try {
    chosen = localStorage.getItem("triolet.theme") || "auto";
  } catch {
    // storage is blocked: use the system's theme
  }
  document.documentElement.dataset.theme = ["light", "dark"].includes(chosen) ? chosen : "auto";
})();

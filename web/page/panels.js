// Everything around the conversation: the side bar, which lies over the page on a narrow screen, and the toast.

import { $ } from "./dom.js";

const SHOWN_MS = 6000; // the toast; longer under a pointer or with the focus

// Returns a function that closes it.
export function setUpSidebar() {
  const covered = document.querySelectorAll(".skip, .heading, #scroller, #composer > :not(#toast), #settings");
  const set = (open) => {
    $("sidebar").classList.toggle("open", open);
    $("scrim").hidden = !open;
    $("open-sidebar").setAttribute("aria-expanded", String(open));
    for (const node of covered) node.inert = open;
  };
  const close = () => {
    set(false);
    $("open-sidebar").focus();
  };
  $("open-sidebar").addEventListener("click", () => {
    set(true);
    $("close-sidebar").focus();
  });
  $("close-sidebar").addEventListener("click", close);
  $("scrim").addEventListener("click", close);
  $("sidebar").addEventListener("keydown", (event) => event.key === "Escape" && close());
  matchMedia("(max-width: 48rem)").addEventListener("change", () => set(false)); // as in sidebar.css
  return () => set(false);
}

let toastTimer = 0;

export function toast(text, actionLabel, action) {
  clearTimeout(toastTimer);
  const hide = () => {
    $("toast").hidden = true;
  };
  const expire = () => {
    if ($("toast").matches(":hover, :focus-within")) toastTimer = setTimeout(expire, SHOWN_MS);
    else hide();
  };
  $("toast-text").textContent = text;
  $("toast-action").hidden = !action;
  $("toast-action").textContent = actionLabel ?? "";
  $("toast-action").onclick = () => {
    hide();
    action();
  };
  $("toast").hidden = false;
  toastTimer = setTimeout(expire, SHOWN_MS);
}

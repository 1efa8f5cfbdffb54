// A button that opens a small menu above or below it. The browser closes it at a click elsewhere and at Escape.

import { button, make } from "./dom.js";

// entries: [words, action(button)]…
export function menu(className, iconName, label, entries) {
  const list = make("div", "menu");
  list.popover = "auto";
  list.append(...entries.map(([words, action]) => {
    const entry = make("button", "menu-entry");
    entry.type = "button";
    entry.append(make("span", "", words));
    entry.addEventListener("click", () => action(entry));
    return entry;
  }));
  const opener = button(className, iconName, label);
  opener.popoverTargetElement = list;
  opener.setAttribute("aria-haspopup", "true");
  const close = () => list.hidePopover();
  list.addEventListener("toggle", ({ newState }) => {
    if (newState === "closed") return;
    const { left, top, bottom } = opener.getBoundingClientRect();
    const above = top > list.offsetHeight + 8;
    list.style.left = `${Math.max(8, Math.min(left, innerWidth - list.offsetWidth - 8))}px`;
    list.style.top = `${above ? top - list.offsetHeight - 4 : bottom + 4}px`;
    list.firstChild.focus({ preventScroll: true });
    addEventListener("scroll", close, { capture: true, once: true }); // it would stay behind
  });
  const node = make("span", "with-menu");
  node.append(opener, list);
  return node;
}

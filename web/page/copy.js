// Copies text, also on a page that came over plain HTTP from another machine, where browsers have no clipboard API.

const SHOWN_MS = 1500;

export async function copyText(text, node) {
  const label = node.querySelector("span") ?? node;
  label.dataset.label ??= label.textContent; // so that a second click soon after does not take "Copied" for the label
  label.textContent = (await copied(text)) ? "Copied" : "Copying is not allowed here";
  setTimeout(() => {
    label.textContent = label.dataset.label;
  }, SHOWN_MS);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedBySelection(text);
  }
}

function copiedBySelection(text) {
  const focused = document.activeElement;
  const area = document.createElement("textarea");
  area.className = "hidden";
  area.readOnly = true; // so that no keyboard opens on a phone
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy"); // deprecated, but the only way without the clipboard API
  area.remove();
  focused?.focus({ preventScroll: true });
  return done;
}

// Formulas: TeX to MathML with Temml, which is loaded when the first formula appears. Until then, and where the TeX is
// wrong, the formula stands there as it was written.

const LONGEST = 5000; // characters; a longer formula is shown as it was written
const CACHED = 300; // formulas that a growing paragraph shows again and again

const cache = new Map(); // "d" or "i" and the TeX -> its node
const waiting = new Set(); // nodes to be typeset once Temml is there
let temml = null;
let loading = null;

export function formula(tex, display) {
  if (tex.length > LONGEST) return source(tex, display);
  if (temml) return typeset(tex, display);
  const node = source(tex, display);
  waiting.add(node);
  loading ??= import("../vendor/temml/temml.js").then(loaded, () => (loading = null)); // a later formula tries again
  return node;
}

function loaded(module) {
  temml = module.default;
  for (const node of waiting) {
    if (node.isConnected) node.replaceWith(typeset(node.textContent, node.dataset.display === "true"));
  }
  waiting.clear();
}

function typeset(tex, display) {
  const key = `${display ? "d" : "i"}${tex}`;
  if (!cache.has(key)) {
    if (cache.size >= CACHED) cache.delete(cache.keys().next().value);
    cache.set(key, rendered(tex, display));
  }
  return cache.get(key).cloneNode(true);
}

function rendered(tex, display) {
  let node;
  try {
    const tree = temml.__renderToMathMLTree(tex, { displayMode: display, throwOnError: true, maxSize: [20, 500], maxExpand: 500 });
    withoutStyleAttributes(tree);
    node = tree.toNode();
  } catch {
    return source(tex, display);
  }
  if (!display) return node;
  const block = document.createElement("div"); // a wide formula scrolls, so keyboards must reach it
  block.className = "formula";
  block.tabIndex = 0;
  block.setAttribute("role", "group");
  block.setAttribute("aria-label", "Formula");
  block.append(node);
  return block;
}

// The page's security policy forbids style attributes; the style property may be set.
function withoutStyleAttributes(node) {
  if (node.attributes?.style) {
    for (const rule of node.attributes.style.split(";")) {
      const [name, value] = rule.split(":");
      if (value) node.style[name.trim()] = value.trim();
    }
    delete node.attributes.style;
  }
  for (const child of node.children ?? []) withoutStyleAttributes(child);
}

function source(tex, display) {
  const node = document.createElement("code");
  node.className = "tex";
  node.dataset.display = String(display);
  node.textContent = tex;
  return node;
}

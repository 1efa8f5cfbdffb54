// Small things that both pages build their DOM with. The icons stand in the page itself (icons.svg), so that they are
// there also while the server is not.

export const $ = (id) => document.getElementById(id);

export function make(tag, className = "", text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// Makes `nodes` the children of `container`. Those that are there already keep their focus and what is typed in them.
export function place(container, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...container.children]) if (!wanted.has(child)) child.remove();
  nodes.forEach((node, index) => {
    const there = container.children[index];
    if (there !== node) container.insertBefore(node, there ?? null);
  });
}

export function icon(name, className = "icon") {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", className);
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

export function button(className, iconName, label, action) {
  const node = make("button", className);
  node.type = "button";
  node.append(icon(iconName), make("span", "", label));
  if (action) node.addEventListener("click", action);
  return node;
}

// The panel with the settings of one conversation. What stands in the fields is kept as it was typed, also if it is
// wrong; a wrong field says so, and nothing is sent until it is mended.

import { $, make } from "./dom.js";
import { toast } from "./panels.js";
import { GROUPS, read } from "./settings-fields.js";
import { saveSettings } from "./store.js";

// onChange(values) is called when somebody changes one; `values` is what stands in the fields. Returns
//   show(values)  show those of another conversation;
//   asked()       what they ask for: { system, sampling }, the latter with the names and types of the API;
//   valid()       whether all can be sent; otherwise shows the first that cannot.
export function setUpSettings(onChange) {
  const form = $("settings-form");
  const fields = new Map();
  $("settings-groups").append(...GROUPS.map((group, index) => groupNode(group, index === 0, fields)));
  const controls = [...form.elements].filter((control) => control.name);
  const collect = () => Object.fromEntries(controls.map((control) => [control.name, textOf(control)]).filter(([, text]) => text !== ""));
  const toggle = (open) => {
    $("settings").hidden = !open;
    $("open-settings").setAttribute("aria-expanded", String(open));
    $(open ? "set-system" : "open-settings").focus();
  };
  $("open-settings").addEventListener("click", () => toggle($("settings").hidden));
  $("close-settings").addEventListener("click", () => toggle(false));
  $("settings").addEventListener("keydown", (event) => event.key === "Escape" && toggle(false));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    for (const field of fields.values()) check(field);
    checkTogether(fields);
    onChange(collect());
  });
  const show = (values) => {
    for (const control of controls) if (textOf(control) !== (values[control.name] ?? "")) setText(control, values[control.name] ?? "");
    for (const field of fields.values()) check(field);
    checkTogether(fields);
  };
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    show({});
    onChange({});
  });
  $("keep-settings").addEventListener("click", () => {
    saveSettings(collect());
    toast("New chats begin with these settings.");
  });
  return {
    show,
    asked() {
      const read = [...fields.values()].filter(({ value }) => value !== undefined).map(({ spec, value }) => ({ [spec.name]: value, ...spec.also }));
      return { system: $("set-system").value.trim(), sampling: Object.assign({}, ...read) };
    },
    valid() {
      const wrong = [...fields.values()].find(({ problem }) => problem);
      if (!wrong) return true;
      toggle(true);
      wrong.control.closest("details").open = true;
      wrong.control.focus();
      toast(`Nothing was sent. ${wrong.problem}`);
      return false;
    },
  };
}

function groupNode([title, specs], open, fields) {
  const node = make("details", "group");
  node.open = open;
  node.append(make("summary", "", title));
  for (const spec of specs) {
    const field = fieldNode(spec);
    fields.set(spec.name, field);
    node.append(field.node);
  }
  return node;
}

function fieldNode(spec) {
  const control = controlOf(spec);
  control.id = `set-${spec.name}`;
  control.name = spec.name;
  const help = make("p", "fine", spec.help);
  help.id = `${control.id}-help`;
  const message = make("p", "wrong");
  message.id = `${control.id}-wrong`;
  control.setAttribute("aria-describedby", `${help.id} ${message.id}`);
  const label = make("label", "", spec.label);
  label.htmlFor = control.id;
  const node = make("div", `field ${spec.kind}`);
  node.append(label, control, message, help);
  return { spec, node, control, message, value: undefined, problem: "" };
}

function controlOf({ kind, empty = "default", choices }) {
  if (kind === "choice") {
    const control = make("select");
    control.append(...[["", empty], ...choices].map(([value, words]) => new Option(words, value)));
    return control;
  }
  const control = make(["lines", "biases", "tools", "schema"].includes(kind) ? "textarea" : "input");
  if (kind === "flag") control.type = "checkbox";
  else if (control.localName === "textarea") control.rows = kind === "schema" ? 5 : 2;
  else {
    control.type = "text"; // a number field would hide what it cannot read
    control.placeholder = kind === "number" || kind === "integer" ? empty : "";
    control.autocomplete = "off";
  }
  return control;
}

const textOf = (control) => (control.type === "checkbox" ? (control.checked ? "true" : "") : control.value);

function setText(control, text) {
  if (control.type === "checkbox") control.checked = text === "true";
  else control.value = text;
}

function check(field) {
  const { value, problem = "" } = read(field.spec, textOf(field.control));
  field.value = value;
  say(field, problem);
}

function checkTogether(fields) {
  const [least, most] = [fields.get("min_tokens"), fields.get("max_tokens")];
  if (least.value > most.value) say(least, `Min tokens is above Max tokens (${most.value}).`);
}

function say(field, problem) {
  field.problem = problem;
  field.message.textContent = problem;
  if (problem) field.control.setAttribute("aria-invalid", "true");
  else field.control.removeAttribute("aria-invalid");
}

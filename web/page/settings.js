// The panel with the settings of one conversation, or of the two answers that it compares. What stands in the fields is
// kept as it was typed, also if it is wrong; a wrong field says so, and nothing is sent until it is mended.

import { $, make } from "./dom.js";
import { fillModels } from "./picker.js";
import { toast } from "./panels.js";
import { asked, GROUPS, SPECS } from "./settings-fields.js";
import { saveSettings } from "./store.js";

// onChange(values, side) is called when somebody changes one; `values` is what stands in the fields, `side` is 1 for the
// second answer's. onCompare(whether): two answers are wanted, or one. Returns
//   show(sides, models)  show those of another conversation, { values } of one answer or of two;
//   valid()              whether all can be sent; otherwise shows the first that cannot.
export function setUpSettings({ onChange, onCompare }) {
  const form = $("settings-form");
  const fields = new Map();
  $("settings-groups").append(...GROUPS.map((group, index) => groupNode(group, index === 0, fields)));
  const controls = [...form.elements].filter((control) => control.name);
  let [sides, side, models] = [[{}], 0, []];
  const collect = () => Object.fromEntries(controls.map((control) => [control.name, textOf(control)]).filter(([, text]) => text !== ""));
  const toggle = (open) => {
    $("settings").hidden = !open;
    $("open-settings").setAttribute("aria-expanded", String(open));
    $(open ? "set-system" : "open-settings").focus();
  };
  const check = () => {
    const { problems } = asked(sides[side]);
    for (const { name } of SPECS) say(fields.get(name), problems.get(name) ?? "");
  };
  const showSide = (shown) => {
    side = Math.min(shown, sides.length - 1);
    const values = sides[side];
    $("model-field").hidden = !fillModels($("set-model"), models, values.model);
    for (const control of controls) if (textOf(control) !== (values[control.name] ?? "")) setText(control, values[control.name] ?? "");
    $("compare").checked = sides.length > 1;
    $("sides").hidden = sides.length < 2;
    for (const radio of document.getElementsByName("side")) radio.checked = Number(radio.value) === side;
    check();
  };
  const change = (values) => {
    sides[side] = values;
    check();
    onChange(values, side);
  };
  $("open-settings").addEventListener("click", () => toggle($("settings").hidden));
  $("close-settings").addEventListener("click", () => toggle(false));
  $("settings").addEventListener("keydown", (event) => event.key === "Escape" && toggle(false));
  $("compare").addEventListener("change", () => {
    side = 1; // what shall be different
    onCompare($("compare").checked);
  });
  $("sides").addEventListener("change", ({ target }) => showSide(Number(target.value)));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => change(collect()));
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    change({});
  });
  $("keep-settings").addEventListener("click", () => {
    saveSettings(collect());
    toast("New chats begin with these settings.");
  });
  return {
    show(...shown) {
      [sides, models] = shown;
      showSide(side);
    },
    valid() {
      const wrong = sides.findIndex((values) => asked(values).problems.size > 0);
      if (wrong < 0) return true;
      showSide(wrong);
      toggle(true);
      const [[name, problem]] = asked(sides[wrong]).problems;
      const { control } = fields.get(name);
      control.closest("details").open = true;
      control.focus();
      toast(`Nothing was sent. ${problem}`);
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
  return { node, control, message };
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

function say({ control, message }, problem) {
  message.textContent = problem;
  if (problem) control.setAttribute("aria-invalid", "true");
  else control.removeAttribute("aria-invalid");
}

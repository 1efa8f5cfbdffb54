// Choosing a model, in the heading and in the settings, where the server has several.

import { $ } from "./dom.js";
import { modelChoices } from "./models.js";

// Returns whether there is anything to choose.
export function fillModels(select, models, wanted = "") {
  const choices = modelChoices(models, wanted);
  const shown = [...select.options].map(({ value, text }) => [value, text]);
  if (JSON.stringify(shown) !== JSON.stringify(choices)) select.replaceChildren(...choices.map(([value, words]) => new Option(words, value))); // or an open list would close
  select.value = wanted;
  return choices.length > 1;
}

// onChoose(model): somebody wants another one. Returns show(models, wanted).
export function setUpPicker(onChoose) {
  $("model").addEventListener("change", () => onChoose($("model").value));
  return (models, wanted) => {
    const several = fillModels($("model"), models, wanted);
    $("model").hidden = !several;
    $("model-name").hidden = several;
    if (models.length > 0) $("model-name").textContent = models[0].id;
  };
}

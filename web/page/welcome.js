// What a new conversation suggests.

import { $, make } from "./dom.js";

// The bundled model can do few things; these are among them.
const DEMO = [
  ["Arithmetic", "What is 347 + 285?"],
  ["Counting", "Count down from 12 to 3."],
  ["JSON", "Extract name, age and city as JSON: Mia is 34 years old, lives in Oslo and works as a nurse."],
  ["Story", "Tell me a short story about a red fox called Emma who likes apples."],
  ["Units", "How many centimeters are in 12 meters?"],
  ["Reading", "Tom lives in Rome. Tom has a dog. Anna lives in Paris. Anna has a cat. What pet does Anna have?"],
];
const ANY = [
  ["Explain", "Explain in simple words how a refrigerator keeps things cold."],
  ["Write", "Write a friendly message that moves a meeting from Tuesday to Thursday."],
  ["Plan", "Plan a weekend in a small town by the sea, with something to do when it rains."],
  ["Compare", "Compare trains and buses for a trip of 300 km, in a table."],
  ["Code", "Write a Python function that finds the longest word in a text, and explain it."],
  ["Ideas", "Give me five ideas for a birthday present that costs nothing."],
];

export function showExamples(model, onAsk) {
  const examples = model === "triolet-demo" ? DEMO : ANY;
  const items = examples.map(([title, text]) => {
    const card = make("button", "example");
    card.append(make("b", "", title), text);
    card.addEventListener("click", () => onAsk(text));
    const item = make("li");
    item.append(card);
    return item;
  });
  $("examples").replaceChildren(...items);
}

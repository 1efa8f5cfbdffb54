// The models that a server has, as /v1/models lists them, and which of them a conversation uses. Pure.

const NO_MODEL = {};
const STATES = { loading: "loading", unloading: "being unloaded", unloaded: "not loaded" }; // of a server with several

// The model for a conversation that wants the one called `wanted`, "" for the server's first: { model, gone }, the latter
// whether the server has no such model. Its limit is that of its base model where it has none, as an adapter.
export function chosenModel(models, wanted = "") {
  const found = models.find(({ id, aliases }) => id === wanted || aliases?.includes(wanted));
  const model = found ?? models[0] ?? NO_MODEL;
  const base = models.find(({ id }) => id === model.parent);
  return { model: { ...model, max_model_len: model.max_model_len ?? base?.max_model_len }, gone: wanted !== "" && !found && models.length > 0 };
}

// What a list to choose from has: [value, words]…, an adapter after its base model. One value is `wanted` itself, also if
// it is "", another name of a model, or a name that the server does not have.
export function modelChoices(models, wanted = "") {
  const { model, gone } = chosenModel(models, wanted);
  const isAdapter = ({ parent }) => models.some(({ id }) => id === parent);
  const sorted = models.filter((one) => !isAdapter(one)).flatMap((base) => [base, ...models.filter(({ parent }) => parent === base.id)]);
  const choices = sorted.map((one) => [one.id === model.id && !gone ? wanted : one.id, wordsFor(one)]);
  return gone ? [...choices, [wanted, `${wanted} (not served)`]] : choices;
}

function wordsFor({ id, parent, status }) {
  const adapter = parent && !id.startsWith(`${parent}:`) ? `, an adapter of ${parent}` : "";
  const state = status?.failed ? "could not be loaded" : STATES[status?.value];
  return `${id}${adapter}${state ? ` (${state})` : ""}`;
}

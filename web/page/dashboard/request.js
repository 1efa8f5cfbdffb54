// A request's name in both tables and on the map.

import { make } from "../dom.js";
import { colourOf } from "./words.js";

// The first cell of a row: its colour, its name, and further facts on small plates.
export function requestCell(data, ...more) {
  const cell = make("th");
  cell.scope = "row";
  cell.append(make("i", "swatch"), make("code", "", data.choice ? `${data.id}·${data.choice}` : data.id));
  const plates = [data.process, data.tenant && `key ${data.tenant}`, ...more];
  cell.append(...plates.filter(Boolean).map((text) => make("span", "plate", text)));
  return cell;
}

// Each web process numbers its own requests.
export const nameOf = ({ id, process }) => (process ? `${id} at ${process}` : id);

export function colourRow(node, data) {
  node.dataset.sequence = data.sequence;
  node.style.setProperty("--own", colourOf(data.request));
}

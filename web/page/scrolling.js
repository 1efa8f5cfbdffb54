// Keeps the end of the conversation in view while it grows, unless the reader has scrolled away from it.

import { $ } from "./dom.js";

const NEAR_END = 80; // pixels: within this distance of the end, the page follows the answer

// Returns follow(boolean). Without messages the page stays at its top.
export function setUpScrolling() {
  const scroller = $("scroller");
  let following = true;
  let top = 0; // where it was scrolled to last
  const nearEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END;
  const show = () => {
    top = scroller.scrollTop;
    $("to-end").hidden = following || nearEnd();
  };
  const keepUp = () => {
    if (following) scroller.scrollTop = $("welcome").hidden ? scroller.scrollHeight : 0;
    show();
  };
  // Only who scrolls up stops following: a scroll event may come after the answer has grown by more than NEAR_END.
  scroller.addEventListener("scroll", () => {
    following = nearEnd() || (following && scroller.scrollTop >= top);
    show();
  });
  const observer = new ResizeObserver(keepUp); // once for each picture that the browser shows, formulas and all
  observer.observe($("messages"));
  observer.observe(scroller);
  const follow = (value) => {
    following = value;
    keepUp();
  };
  $("to-end").addEventListener("click", () => follow(true));
  return follow;
}

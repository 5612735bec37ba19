// Puts the page together.

import { Detail } from "./detail";
import { byId, element, plural, setText } from "./dom";
import { Scene } from "./draw";
import { byRouter, follow, keep, open } from "./net";
import { Side } from "./side";
import { Store } from "./store";

const LIST_MS = 250;
const NEWS = 5;

const store = new Store();
export const scene = new Scene(byId("canvas", HTMLCanvasElement), store);
const side = new Side(store, byId("tabs", HTMLElement), byId("list", HTMLElement), byId("filter", HTMLInputElement));
const detail = new Detail(store, byId("detail", HTMLElement));
const [lists, panel] = [byId("lists", HTMLElement), byId("detail", HTMLElement)];
let selected: string | undefined;
let pending = 0;
/** Whether the page says why it shows nothing, or asks for a credential. */
let closed = false;

function select(id: string | undefined, show: boolean): void {
  const last = selected;
  selected = id;
  scene.select(id, show);
  detail.show(id);
  lists.hidden = id !== undefined;
  panel.hidden = id === undefined;
  if (id === undefined) {
    side.update();
    if (last !== undefined) side.focus(last);
  }
}

scene.onselect = (id) => {
  const inside = document.activeElement === byId("canvas", HTMLCanvasElement);
  select(id, false);
  if (inside) byId("canvas", HTMLCanvasElement).focus();
};
side.onselect = (id) => {
  select(id, true);
  detail.focus();
};
detail.onselect = (id) => {
  select(id, true);
  detail.focus();
};
detail.onclose = () => select(undefined, false);
byId("in", HTMLButtonElement).addEventListener("click", () => scene.zoom(1.25));
byId("out", HTMLButtonElement).addEventListener("click", () => scene.zoom(0.8));
byId("fit", HTMLButtonElement).addEventListener("click", () => scene.fit());

function count(number: number, word: string, of?: number): HTMLElement {
  const text = of === undefined || of === number ? String(number) : `${number}/${of}`;
  return element("span", "", element("b", "", text), ` ${word}${(of ?? number) === 1 ? "" : "s"}`);
}

function refresh(): void {
  pending = 0;
  const [macs, cables, models] = [[...store.macs.values()], [...store.cables.values()], [...store.models.values()]];
  const ill = [...macs, ...cables, ...models].filter((one) => one.health === "bad").length;
  byId("counts", HTMLElement).replaceChildren(
    count(models.filter((one) => one.serves).length, "model", models.length),
    count(macs.filter((one) => one.health !== "bad").length, "Mac", macs.length),
    count(cables.filter((one) => one.connected).length, "cable", cables.length),
    ...(ill ? [element("span", "ill", plural(ill, "problem"))] : []),
  );
  const words = `${plural(macs.length, "Mac")}, ${plural(cables.length, "cable")}, ${plural(models.length, "model")}`;
  byId("canvas", HTMLCanvasElement).setAttribute("aria-label", `Fleet: ${words}`);
  const empty = byId("empty", HTMLElement);
  empty.hidden = macs.length > 0 || (cables.length > 0 && store.synced);
  if (closed) empty.hidden = false;
  else if (store.own) {
    empty.hidden = false;
    setText(empty, "An API key shows its own models. Macs and cables need the token of a viewer.");
  } else if (!store.synced) setText(empty, "Reading the fleet …");
  else if (!empty.hidden) {
    const how = element("p", "", "On a Mac: ", element("code", "", "sudo thunderfleet join -"));
    empty.replaceChildren(element("h2", "", "No Macs yet"), how, element("p", "", "Macs and their cables appear here as they join."));
  }
  const notes = byId("notes", HTMLElement);
  notes.hidden = !store.notes.length;
  notes.replaceChildren(...store.notes.map((note) => element("p", "", note)));
  if (!lists.hidden) side.update();
  detail.update();
  announce();
}

/** Announces failures to screen readers. */
function announce(): void {
  const log = byId("said", HTMLElement);
  for (const [name, problem] of store.news.splice(0).slice(0, NEWS)) log.append(element("p", "", `${name}: ${problem}`));
  while (log.childNodes.length > 2 * NEWS) log.firstChild?.remove();
}

function later(): void {
  scene.update();
  if (!pending) pending = window.setTimeout(refresh, LIST_MS);
}

function state(health: string, text: string): void {
  const dot = byId("link", HTMLElement).querySelector(".dot");
  if (dot) dot.className = `dot ${health}`;
  setText(byId("link-text", HTMLElement), text);
}

function refused(reason: string): void {
  state("bad", "not connected");
  const empty = byId("empty", HTMLElement);
  empty.hidden = false;
  closed = true;
  if (byRouter) sign(empty, reason);
  else setText(empty, reason);
}

/** Asks for the credential that a router needs. */
function sign(box: HTMLElement, reason: string): void {
  const input = element("input");
  input.type = "password";
  input.autocomplete = "off";
  input.placeholder = "API key or viewer token";
  input.setAttribute("aria-label", "API key or viewer token");
  const button = element("button", "go", "Open");
  const form = element("form", "sign", element("h2", "", "Open the fleet"), ...(reason ? [element("p", "ill", reason)] : []), input, button);
  form.append(element("p", "", "An API key shows its own models; the token of a viewer shows the fleet:"));
  form.append(element("code", "", "kubectl create token NAME --audience=thunderfleet-page"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!input.value.trim()) return;
    keep(input.value.trim());
    start();
  });
  box.replaceChildren(form);
  input.focus();
}

function start(): void {
  closed = false;
  refresh();
  let first = true;
  void follow({
    message: (message) => {
      store.apply(message);
      if (first) refresh();
      first = false;
      later();
      state("good", "live");
    },
    state: (connected, why) => {
      if (!connected) state("bad", why);
      else if (store.synced) state("good", "live");
    },
    closed: (reason) => {
      // When a session ends, the page forgets all that its credential has shown.
      store.clear();
      select(undefined, false);
      refresh();
      refused(reason);
    },
  });
}

const reason = await open();
if (reason !== undefined) refused(reason);
else start();

// The lists beside the drawing. Everything that is drawn can be found and selected here too.

import { bar, bytes, element, seconds, setText } from "./dom";
import { shortName } from "./draw";
import type { Cable, Entity, Health, Mac, Model, Store } from "./store";

const ROWS = 150;
const ORDER: Record<Health, number> = { bad: 0, doubtful: 1, good: 2, idle: 3 };
const TABS = { models: "Models", macs: "Macs", cables: "Cables" } as const;

const NOTHING = {
  models: "No models yet. Deploy one: thunderfleet run REPOSITORY, or kubectl apply -f FILE.",
  macs: "No Macs yet. Add one: thunderfleet join.",
  cables: "No cables yet. A Thunderbolt cable between two Macs appears here within seconds.",
} as const;

type Tab = keyof typeof TABS;

interface Row {
  button: HTMLButtonElement;
  dot: HTMLElement;
  name: HTMLElement;
  more: HTMLElement;
  below: HTMLElement;
  bar?: HTMLProgressElement;
}

export class Side {
  onselect: (id: string) => void = () => undefined;
  private tab: Tab = "models";
  private filter = "";
  private readonly tabs = new Map<Tab, { button: HTMLButtonElement; count: HTMLElement }>();
  private readonly rows = new Map<string, Row>();
  private readonly rest = element("div", "rest");

  constructor(
    private readonly store: Store,
    tabs: HTMLElement,
    private readonly list: HTMLElement,
    filter: HTMLInputElement,
  ) {
    for (const tab of Object.keys(TABS) as Tab[]) {
      const count = element("small");
      const button = element("button", "", TABS[tab], count);
      button.type = "button";
      button.role = "tab";
      button.id = `tab-${tab}`;
      button.setAttribute("aria-controls", "list");
      button.addEventListener("click", () => this.show(tab));
      button.addEventListener("keydown", (event) => this.key(event, tab));
      this.tabs.set(tab, { button, count });
      tabs.append(button);
    }
    filter.addEventListener("input", () => {
      this.filter = filter.value.trim().toLowerCase();
      this.update();
    });
    list.addEventListener("keydown", (event) => this.walk(event));
    this.show("models");
  }

  show(tab: Tab): void {
    this.tab = tab;
    for (const [name, { button }] of this.tabs) {
      button.setAttribute("aria-selected", String(name === tab));
      button.tabIndex = name === tab ? 0 : -1;
    }
    this.list.setAttribute("aria-labelledby", `tab-${tab}`);
    this.list.scrollTop = 0;
    this.update();
  }

  /** Puts the focus on the row of an entity, if it is listed. */
  focus(id: string): void {
    this.rows.get(id)?.button.focus();
  }

  update(): void {
    for (const [name, { count }] of this.tabs) {
      const all = [...this.store[name].values()];
      const ill = all.filter((one) => one.health === "bad").length;
      setText(count, String(ill || all.length));
      count.className = ill ? "ill" : "";
      count.title = ill ? `${ill} of ${all.length} need attention` : "";
    }
    const found = [...(this.store[this.tab] as Map<string, Entity>).values()].filter((one) => this.matches(one));
    found.sort((one, other) => ORDER[one.health] - ORDER[other.health] || one.name.localeCompare(other.name, "en", { numeric: true }));
    const shown = found.slice(0, ROWS);
    const wanted = new Set(shown.map((one) => one.id));
    for (const [id, row] of this.rows) {
      if (wanted.has(id)) continue;
      row.button.remove();
      this.rows.delete(id);
    }
    let next: ChildNode | null = this.list.firstChild;
    for (const entity of shown) {
      const row = this.rows.get(entity.id) ?? this.row(entity.id);
      this.fill(row, entity);
      // Moving a row that stands where it should would take its focus.
      if (row.button === next) next = next.nextSibling;
      else this.list.insertBefore(row.button, next);
    }
    const more = found.length - shown.length;
    this.rest.hidden = false;
    setText(this.rest, more > 0 ? `${more} more; filter by name` : found.length ? "" : this.nothing());
    this.list.append(this.rest);
  }

  private nothing(): string {
    if (this.filter) return "nothing matches the filter";
    return this.store.synced ? NOTHING[this.tab] : "";
  }

  private matches(entity: Entity): boolean {
    if (!this.filter) return true;
    const words = [entity.name, entity.problem, "model" in entity ? entity.model : "", "users" in entity ? entity.users.join(" ") : ""];
    return words.join(" ").toLowerCase().includes(this.filter);
  }

  private row(id: string): Row {
    const [dot, name, more, below] = [element("span", "dot"), element("span", "name"), element("span", "more"), element("span", "below")];
    const button = element("button", "row", dot, name, more, below);
    button.type = "button";
    button.dataset["id"] = id;
    button.addEventListener("click", () => this.onselect(id));
    const made = { button, dot, name, more, below };
    this.rows.set(id, made);
    return made;
  }

  private fill(row: Row, entity: Entity): void {
    row.button.dataset["health"] = entity.health;
    row.dot.className = `dot ${entity.health}`;
    row.button.title = entity.problem;
    const [name, more, below] = "ranks" in entity ? mac(entity) : "ends" in entity ? cable(entity) : model(entity);
    setText(row.name, name);
    setText(row.more, more);
    setText(row.below, below);
    row.below.hidden = !below;
    this.progress(row, "copies" in entity ? progress(entity) : undefined);
  }

  private progress(row: Row, share: number | undefined): void {
    if (share === undefined) {
      row.bar?.remove();
      delete row.bar;
      return;
    }
    if (!row.bar) {
      row.bar = bar(share, "progress") as HTMLProgressElement;
      row.button.append(row.bar);
    }
    row.bar.value = share;
  }

  private key(event: KeyboardEvent, tab: Tab): void {
    const names = Object.keys(TABS) as Tab[];
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const next = names[(names.indexOf(tab) + step + names.length) % names.length] as Tab;
    this.show(next);
    this.tabs.get(next)?.button.focus();
    event.preventDefault();
  }

  private walk(event: KeyboardEvent): void {
    const at = document.activeElement;
    if (!(at instanceof HTMLButtonElement) || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
    const next = event.key === "ArrowDown" ? at.nextElementSibling : at.previousElementSibling;
    if (next instanceof HTMLButtonElement) next.focus();
    event.preventDefault();
  }
}

function model(one: Model): [string, string, string] {
  const speed = one.tokensPerSecond ? ` · ${one.tokensPerSecond} tok/s` : "";
  return [shortName(one.name), `${one.ready}/${one.wanted}${speed}`, one.problem || [one.model, one.transport].filter(Boolean).join(" · ")];
}

function mac(one: Mac): [string, string, string] {
  const groups = [...new Set(one.ranks.map((rank) => shortName(rank.group)))].join(", ");
  return [one.name, one.memory ? bytes(one.memory) : "", one.problem || [one.chip, groups].filter(Boolean).join(" · ")];
}

function cable(one: Cable): [string, string, string] {
  const rates = [one.speed, one.gbps && `${one.gbps} Gb/s measured`].filter(Boolean).join(" · ");
  const name = one.ends.map(([node, port]) => `${node} tb${port}`).join(" ↔ ");
  return [name, one.rdma ? "RDMA" : "", one.problem || [rates, one.users.map(shortName).join(", ")].filter(Boolean).join(" · ")];
}

/** How much of what a model waits for is done: copies first, then loading. */
export function progress(one: Model): number | undefined {
  const copies = one.copies.filter((copy) => copy.bytes > 0);
  const loading = one.groups.filter((group) => group.state === "Loading" && group.total > 0);
  const [done, all] = copies.length
    ? [sum(copies.map((copy) => copy.done)), sum(copies.map((copy) => copy.bytes))]
    : [sum(loading.map((group) => group.loaded)), sum(loading.map((group) => group.total))];
  return all ? done / all : undefined;
}

export function left(value: number | null): string {
  return value === null ? "" : `${seconds(value)} left`;
}

function sum(values: number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

// Elements of the page. Texts are text nodes, never markup.

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = "",
  ...content: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

export function byId<T extends HTMLElement>(id: string, type: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof type)) throw new Error(`the page has no ${id}`);
  return found;
}

/** Writes only what has changed, so that the browser need not lay out the rest again. */
export function setText(node: Node, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

export function bar(share: number, label: string): HTMLElement {
  const made = element("progress", "bar");
  made.max = 1;
  made.value = Math.min(1, Math.max(0, share));
  made.setAttribute("aria-label", label);
  return made;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value: number): string {
  let at = 0;
  let number = value;
  while (number >= 1024 && at < UNITS.length - 1) {
    number /= 1024;
    at += 1;
  }
  return `${number >= 100 || at === 0 ? Math.round(number) : Number(number.toFixed(1))} ${UNITS[at]}`;
}

/** Bits per second. */
export function bits(value: number): string {
  if (value >= 1e9) return `${Number((value / 1e9).toFixed(1))} Gb/s`;
  return value >= 1e6 ? `${Math.round(value / 1e6)} Mb/s` : `${Math.round(value / 1e3)} kb/s`;
}

export function seconds(value: number): string {
  if (value < 120) return `${Math.round(value)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
}

export function plural(count: number, word: string): string {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

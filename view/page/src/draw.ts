// The drawing: Macs as cards, cables as lines, groups as areas of one color.

import { bits, bytes } from "./dom";
import { HEIGHT, layout, WIDTH, type Point } from "./layout";
import { type Cable, type Group, hues, INKS, type Mac, type Model, type Store } from "./store";

const FONT = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
const MIN_SCALE = 0.02;
const MAX_SCALE = 3;
/** The least size of a text on the screen, in pixels, and the usual one of names in a small picture. What would be smaller is left out. */
const READABLE = 9;
const USUAL = 11;
/** From these scales on, cards have a name beside a dot (20 high), and details (12 high). */
const NAMES_FROM = READABLE / 20;
const DETAILS_FROM = READABLE / 12;
/** The least width of a card on the screen that has a name: for the last letters of it. */
const NAMED_WIDTH = 34;
/** Between such a name and the border of its card, in pixels of the screen. */
const BESIDE_NAME = 1.5;
const MAX_LABELS = 160;
const MOVE_MS = 450;
/** Time between two frames of moving dots, and the most cables that have them. */
const FLOW_MS = 50;
const MAX_FLOWS = 60;
/** Between the areas of groups that share Macs: room for a title. */
const NESTED = 28;
const MAX_NESTED = 4;
/** Where on a cable its text may stand. */
const SHARES = [0.5, 0.34, 0.66, 0.27, 0.73] as const;

interface Box {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

/** The name of a group, and where it stands. */
interface Title {
  text: string;
  size: number;
  x: number;
  y: number;
  box: Box;
  group: string;
}

interface Colors {
  back: string;
  card: string;
  line: string;
  text: string;
  quiet: string;
  good: string;
  doubtful: string;
  bad: string;
  accent: string;
  dark: boolean;
}

export class Scene {
  /** Called when somebody selects something; undefined: nothing. */
  onselect: (id: string | undefined) => void = () => undefined;
  private readonly context: CanvasRenderingContext2D;
  private places = new Map<string, Point>();
  private before = new Map<string, Point>();
  private movedAt = -MOVE_MS;
  private structure = -1;
  private pairs = "";
  private scale = 1;
  private left = 0;
  private top = 0;
  private touched = false;
  private requested = 0;
  private selected: string | undefined;
  private lit: ReadonlySet<string> | undefined;
  private colors: Colors;
  private hue = new Map<string, number>();
  private readonly widths = new Map<string, string>();

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly store: Store,
  ) {
    this.context = canvas.getContext("2d", { alpha: false }) as CanvasRenderingContext2D;
    this.colors = this.read();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.colors = this.read();
      this.update();
    });
    new ResizeObserver(() => this.resized()).observe(canvas);
    this.pointer();
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** Draws with the next frame of the screen, if something has changed. */
  update(): void {
    if (!this.requested) this.requested = requestAnimationFrame(() => this.draw());
  }

  select(id: string | undefined, show = false): void {
    this.selected = id;
    const model = id === undefined ? undefined : this.store.models.get(id);
    this.lit = model?.groups.length ? new Set(model.groups.map((group) => group.name)) : undefined;
    if (show && id !== undefined) this.reveal(id);
    this.update();
  }

  /** Shows the whole fleet. */
  fit(): void {
    this.touched = false;
    const { left, top, right, bottom } = this.bounds();
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const margin = Math.min(56, width / 12);
    const fitting = Math.min((width - 2 * margin) / (right - left), (height - 2 * margin) / (bottom - top));
    this.scale = Math.min(1.25, Math.max(MIN_SCALE, fitting));
    this.left = (left + right) / 2 - width / 2 / this.scale;
    this.top = (top + bottom) / 2 - height / 2 / this.scale;
    this.update();
  }

  zoom(factor: number, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2): void {
    const next = Math.min(MAX_SCALE, Math.max(MIN_SCALE, this.scale * factor));
    this.left += x / this.scale - x / next;
    this.top += y / this.scale - y / next;
    this.scale = next;
    this.touched = true;
    this.update();
  }

  /** The middle of a Mac or a cable on the screen, in pixels of the page; for tests. */
  at(id: string): Point | undefined {
    const point = this.middle(id);
    const box = this.canvas.getBoundingClientRect();
    return point && { x: box.left + (point.x - this.left) * this.scale, y: box.top + (point.y - this.top) * this.scale };
  }

  private read(): Colors {
    const style = getComputedStyle(document.documentElement);
    const value = (name: string) => style.getPropertyValue(`--${name}`).trim();
    return {
      back: value("back"),
      card: value("card"),
      line: value("line"),
      text: value("text"),
      quiet: value("quiet"),
      good: value("good"),
      doubtful: value("doubtful"),
      bad: value("bad"),
      accent: value("accent"),
      dark: matchMedia("(prefers-color-scheme: dark)").matches,
    };
  }

  // --- places ---

  private arrange(): void {
    if (this.structure === this.store.structure) return;
    this.structure = this.store.structure;
    const names = new Set([...this.store.macs.values()].map((mac) => mac.name));
    const cables = [...this.store.cables.values()].map((cable) => [cable.ends[0][0], cable.ends[1][0]] as const);
    for (const ends of cables) for (const name of ends) names.add(name);
    const pairs = [...names, ...cables.map((ends) => ends.join("\n"))].sort().join("\n\n");
    if (pairs === this.pairs) return;
    this.pairs = pairs;
    const known = this.places.size > 0;
    this.before = this.places;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    this.places = layout([...names], cables, Math.min(2.2, Math.max(0.6, width / Math.max(1, height))));
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches || this.places.size > 300;
    this.movedAt = known && !still ? performance.now() : -MOVE_MS;
    if (!this.touched) this.fit();
  }

  private place(name: string): Point {
    const point = this.places.get(name) ?? { x: 0, y: 0 };
    const gone = Math.min(1, (performance.now() - this.movedAt) / MOVE_MS);
    const from = gone < 1 ? this.before.get(name) : undefined;
    if (!from) return point;
    const eased = 1 - (1 - gone) ** 3;
    return { x: from.x + (point.x - from.x) * eased, y: from.y + (point.y - from.y) * eased };
  }

  private bounds(): { left: number; top: number; right: number; bottom: number } {
    let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
    for (const { x, y } of this.places.values()) {
      left = Math.min(left, x - WIDTH / 2 - 30);
      right = Math.max(right, x + WIDTH / 2 + 30);
      top = Math.min(top, y - HEIGHT / 2 - 64);
      bottom = Math.max(bottom, y + HEIGHT / 2 + 40);
    }
    return this.places.size ? { left, top, right, bottom } : { left: 0, top: 0, right: 1, bottom: 1 };
  }

  private resized(): void {
    const ratio = Math.min(2, devicePixelRatio || 1);
    this.canvas.width = Math.max(1, Math.round(this.canvas.clientWidth * ratio));
    this.canvas.height = Math.max(1, Math.round(this.canvas.clientHeight * ratio));
    if (this.touched) this.update();
    else this.fit();
    // A resized canvas is empty until it is drawn.
    cancelAnimationFrame(this.requested);
    this.draw();
  }

  private ends(cable: Cable): [Point, Point] {
    const [a, b] = [this.place(cable.ends[0][0]), this.place(cable.ends[1][0])];
    // Several cables between two Macs lie side by side, in the order of their ports, so that none moves when one is added.
    const lanes = this.lanes.get(pairOf(cable));
    if (!lanes || lanes.length < 2) return [a, b];
    const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
    const shift = (lanes.indexOf(cable.id) - (lanes.length - 1) / 2) * 26;
    const turned = cable.ends[0][0] < cable.ends[1][0] ? 1 : -1;
    const [dx, dy] = [((-(b.y - a.y) / length) * shift * turned), ((b.x - a.x) / length) * shift * turned];
    return [
      { x: a.x + dx, y: a.y + dy },
      { x: b.x + dx, y: b.y + dy },
    ];
  }

  private lanes = new Map<string, string[]>();
  private flowing = 0;

  private middle(id: string): Point | undefined {
    const cable = this.store.cables.get(id);
    if (cable) {
      const [a, b] = this.ends(cable);
      return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
    }
    const mac = this.store.macs.get(id);
    return mac && this.places.has(mac.name) ? this.place(mac.name) : undefined;
  }

  private reveal(id: string): void {
    const models = this.store.models.get(id);
    const names = models ? models.groups.flatMap((group) => group.macs) : [];
    const points = names.filter((name) => this.places.has(name)).map((name) => this.place(name));
    const middle = this.middle(id) ?? points[0];
    if (!middle) return;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const inside =
      middle.x > this.left + 40 / this.scale &&
      middle.x < this.left + (width - 40) / this.scale &&
      middle.y > this.top + 40 / this.scale &&
      middle.y < this.top + (height - 40) / this.scale;
    if (inside && this.scale > 0.2) return;
    this.scale = Math.max(this.scale, 0.5);
    this.left = middle.x - width / 2 / this.scale;
    this.top = middle.y - height / 2 / this.scale;
    this.touched = true;
  }

  // --- what is drawn ---

  private draw(): void {
    this.requested = 0;
    this.arrange();
    const { context, canvas, scale } = this;
    const ratio = canvas.width / Math.max(1, canvas.clientWidth);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = this.colors.back;
    context.fillRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    this.dots();
    context.setTransform(ratio * scale, 0, 0, ratio * scale, -this.left * ratio * scale, -this.top * ratio * scale);
    this.hue = hues(this.store.models.values());
    this.lanes = new Map();
    for (const id of [...this.store.cables.keys()].sort()) {
      const pair = pairOf(this.store.cables.get(id) as Cable);
      const lane = this.lanes.get(pair);
      if (lane) lane.push(id);
      else this.lanes.set(pair, [id]);
    }
    const groups = this.nested();
    for (const { group, around } of groups) this.area(group, around);
    const seen = [...this.store.cables.values()].filter((cable) => this.visible(...this.ends(cable)));
    // What is wrong is drawn last, above the rest.
    seen.sort((one, other) => Number(one.health === "bad") - Number(other.health === "bad"));
    for (const cable of seen) this.line(cable);
    this.flows(seen);
    const known = new Set<string>();
    const copying = this.copies();
    for (const mac of this.store.macs.values()) {
      known.add(mac.name);
      if (this.places.has(mac.name)) this.card(mac, copying.get(mac.name));
    }
    for (const name of this.places.keys()) if (!known.has(name)) this.stranger(name);
    const titles = this.titles(groups);
    if (scale >= DETAILS_FROM && seen.length <= MAX_LABELS) this.labels(seen, titles.map((title) => title.box));
    for (const title of titles) this.title(title);
    if (performance.now() - this.movedAt < MOVE_MS) this.update();
  }

  /** A faint pattern that moves with the drawing and shows that it can be moved. */
  private dots(): void {
    const { context, canvas, scale } = this;
    let step = 48 * scale;
    while (step < 24) step *= 2;
    while (step > 96) step /= 2;
    context.fillStyle = this.colors.line;
    const [x0, y0] = [((-this.left * scale) % step) - step, ((-this.top * scale) % step) - step];
    for (let x = x0; x < canvas.clientWidth; x += step) {
      for (let y = y0; y < canvas.clientHeight; y += step) context.fillRect(x, y, 1.4, 1.4);
    }
  }

  private visible(...points: Point[]): boolean {
    const right = this.left + this.canvas.clientWidth / this.scale;
    const bottom = this.top + this.canvas.clientHeight / this.scale;
    const pad = WIDTH;
    return (
      points.some((point) => point.x > this.left - pad) &&
      points.some((point) => point.x < right + pad) &&
      points.some((point) => point.y > this.top - pad) &&
      points.some((point) => point.y < bottom + pad)
    );
  }

  private tint(group: string, alpha = 1): string {
    const hue = this.hue.get(group);
    if (hue === undefined) return this.colors.quiet;
    const light = this.colors.dark ? "70% 64%" : "64% 44%";
    return `hsl(${hue} ${light} / ${alpha})`;
  }

  /** The color of a text about a group. */
  private ink(group: string): string {
    const hue = this.hue.get(group);
    if (hue === undefined) return this.colors.quiet;
    return this.colors.dark ? `hsl(${hue} 70% 70%)` : `hsl(${hue} 64% ${INKS.get(hue) ?? 27}%)`;
  }

  private dimmed(groups: readonly string[]): boolean {
    return this.lit !== undefined && !groups.some((group) => this.lit?.has(group));
  }

  private corners(macs: readonly string[], around = 0): Point[] {
    return macs
      .filter((name) => this.places.has(name))
      .map((name) => this.place(name))
      .flatMap(({ x, y }) => {
        const [dx, dy] = [WIDTH / 2 + 6 + around, HEIGHT / 2 + 6 + around];
        return [
          { x: x - dx, y: y - dy },
          { x: x + dx, y: y - dy },
          { x: x + dx, y: y + dy },
          { x: x - dx, y: y + dy },
        ];
      });
  }

  /** Groups that share Macs lie around each other, the larger one outside; it comes first. */
  private nested(): { model: Model; group: Group; around: number }[] {
    const all = [...this.store.models.values()].flatMap((model) => model.groups.map((group) => ({ model, group })));
    all.sort((one, other) => one.group.macs.length - other.group.macs.length || (one.group.name < other.group.name ? -1 : 1));
    const levels = new Map<string, number>();
    const found = all.map(({ model, group }) => {
      const level = Math.min(MAX_NESTED, Math.max(0, ...group.macs.map((name) => levels.get(name) ?? 0)));
      for (const name of group.macs) levels.set(name, level + 1);
      return { model, group, around: level * NESTED };
    });
    return found.reverse();
  }

  private area(group: Group, around: number): void {
    const { context } = this;
    const outline = hull(this.corners(group.macs, around));
    if (!outline.length || !this.visible(...outline)) return;
    context.beginPath();
    for (const { x, y } of outline) context.lineTo(x, y);
    context.closePath();
    context.lineJoin = "round";
    context.lineWidth = 26;
    const color = this.tint(group.name, (this.colors.dark ? 0.2 : 0.13) * (this.dimmed([group.name]) ? 0.35 : 1));
    // Fill and wide round border, drawn as one color: together they must not become darker.
    context.strokeStyle = context.fillStyle = mixed(this.colors.back, color, context);
    context.stroke();
    context.fill();
  }

  /** The names of groups, none over another or a card; what is outside comes first. */
  private titles(groups: readonly { model: Model; group: Group; around: number }[]): Title[] {
    if (this.scale < 0.12) return [];
    const taken = this.cards();
    const found: Title[] = [];
    for (const { model, group, around } of groups) {
      const title = this.named(model, group, around, taken);
      if (!title) continue;
      taken.push(title.box);
      found.push(title);
    }
    return found;
  }

  /** The name of a group above its area, else below it; undefined if there is no room. */
  private named(model: Model, group: Group, around: number, taken: readonly Box[]): Title | undefined {
    const { scale } = this;
    const corners = this.corners(group.macs, around);
    if (!corners.length || !this.visible(...corners)) return undefined;
    const ys = corners.map((point) => point.y);
    const [top, bottom] = [Math.min(...ys), Math.max(...ys)];
    const upper = corners.filter((point) => point.y < top + 2).map((point) => point.x);
    const x = (Math.min(...upper) + Math.max(...upper)) / 2;
    const xs = corners.map((point) => point.x);
    const room = Math.max(...xs) - Math.min(...xs) + 60;
    const loading = group.total > 0 && group.state === "Loading" && scale >= NAMES_FROM ? ` · ${percent(group.loaded, group.total)}` : "";
    // If a model has one group only, its number says nothing.
    const name = short(shortName(model.groups.length === 1 ? model.name : group.name), 34);
    const speed = model.tokensPerSecond && scale >= NAMES_FROM ? ` · ${model.tokensPerSecond} tok/s` : "";
    const whole = `${name}${group.state === "Ready" ? speed : ` · ${group.state}${loading}`}`;
    const { text, size, width } = this.fitted(whole, Math.max(14, USUAL / scale), room, false);
    for (const y of [top - 20, bottom + 14 + size]) {
      const box = { left: x - width / 2, top: y - size, right: x + width / 2, bottom: y + size * 0.3 };
      if (!taken.some((one) => meets(one, box))) return { text, size, x, y, box, group: group.name };
    }
    return undefined;
  }

  private title({ text, size, x, y, group }: Title): void {
    const { context } = this;
    context.font = `600 ${size}px ${FONT}`;
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    context.globalAlpha = this.dimmed([group]) ? 0.35 : 1;
    this.halo(text, x, y, this.ink(group));
    context.globalAlpha = 1;
  }

  /** A bold text of this size, or smaller as long as it can be read, or cut where it still does not fit. */
  private fitted(text: string, size: number, room: number, end: boolean): { text: string; size: number; width: number } {
    const { context } = this;
    context.font = `600 ${size}px ${FONT}`;
    const width = context.measureText(text).width;
    const least = Math.min(size, Math.max(size * 0.72, READABLE / this.scale));
    const smaller = Math.max(least, Math.min(size, (size * room) / width));
    context.font = `600 ${smaller}px ${FONT}`;
    const cut = this.cut(text, smaller, 600, room, end);
    return { text: cut, size: smaller, width: context.measureText(cut).width };
  }

  /** Where the cards are. */
  private cards(): Box[] {
    return [...this.places.keys()].map((name) => {
      const { x, y } = this.place(name);
      return { left: x - WIDTH / 2, top: y - HEIGHT / 2, right: x + WIDTH / 2, bottom: y + HEIGHT / 2 };
    });
  }

  private line(cable: Cable): void {
    const { context, colors, scale } = this;
    const [a, b] = this.ends(cable);
    const user = cable.users[0];
    const thin = Math.min(1, Math.max(0.35, scale * 1.6)) / Math.min(1, scale * 1.6);
    context.globalAlpha = this.dimmed(cable.users) && cable.health !== "bad" ? 0.25 : 1;
    context.lineCap = "round";
    const stroke = (width: number, color: string, dash: number[] = []) => {
      context.beginPath();
      context.setLineDash(dash);
      context.moveTo(a.x, a.y);
      context.lineTo(b.x, b.y);
      context.lineWidth = width * thin;
      context.strokeStyle = color;
      context.stroke();
      context.setLineDash([]);
    };
    if (this.selected === cable.id) stroke(15, colors.accent);
    if (cable.health === "bad") {
      stroke(3.4, colors.bad, [10 * thin, 9 * thin]);
      this.cross({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
    } else {
      const color = cable.health === "doubtful" ? colors.doubtful : user !== undefined ? this.tint(user) : colors.quiet;
      if (cable.rdma) {
        stroke(7, color);
        if (scale > 0.25) stroke(2.6, colors.back);
      } else stroke(2.6, color);
    }
    context.globalAlpha = 1;
  }

  private cross({ x, y }: Point): void {
    const { context, colors, scale } = this;
    const size = Math.max(9, 5 / scale);
    context.fillStyle = colors.bad;
    context.beginPath();
    context.arc(x, y, size * 1.35, 0, 2 * Math.PI);
    context.fill();
    context.strokeStyle = "#fff";
    context.lineWidth = size * 0.3;
    context.beginPath();
    for (const turn of [1, -1]) {
      context.moveTo(x - size * 0.5, y - size * 0.5 * turn);
      context.lineTo(x + size * 0.5, y + size * 0.5 * turn);
    }
    context.stroke();
  }

  /** The texts of cables, none over another text or a card. */
  private labels(cables: Cable[], titles: readonly Box[]): void {
    const taken: Box[] = [...this.cards(), ...titles];
    // The cross of a pulled cable is more important than the text of another one.
    for (const cable of cables) {
      if (cable.health !== "bad") continue;
      const { x, y } = this.middle(cable.id) as Point;
      taken.push({ left: x - 14, top: y - 14, right: x + 14, bottom: y + 14 });
    }
    for (const cable of cables) if (cable.health !== "bad") this.label(cable, taken);
  }

  private label(cable: Cable, taken: Box[]): void {
    const { context } = this;
    const rate = this.store.rates.get(cable.name);
    const measured = Math.min(...cable.gbps.split("/").map(Number).filter((one) => one > 0));
    const text = rate ? `⇄ ${bits(rate[0] + rate[1])}` : Number.isFinite(measured) ? `${measured} Gb/s` : cable.speed;
    if (!text) return;
    context.font = `${rate ? 600 : 500} 12px ${FONT}`;
    const width = context.measureText(text).width + 14;
    const [a, b] = this.ends(cable);
    for (const share of SHARES) {
      const [x, y] = [a.x + (b.x - a.x) * share, a.y + (b.y - a.y) * share];
      const box = { left: x - width / 2, top: y - 11, right: x + width / 2, bottom: y + 11 };
      if (taken.some((one) => meets(one, box))) continue;
      taken.push(box);
      this.pill(cable, text, { x, y }, width, rate !== undefined);
      return;
    }
  }

  private pill(cable: Cable, text: string, { x, y }: Point, width: number, live: boolean): void {
    const { context, colors } = this;
    const tint = cable.users[0] ? this.tint(cable.users[0]) : colors.accent;
    const ink = cable.users[0] ? this.ink(cable.users[0]) : colors.accent;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.globalAlpha = this.dimmed(cable.users) ? 0.3 : 1;
    context.fillStyle = colors.card;
    context.strokeStyle = live ? tint : colors.line;
    context.lineWidth = live ? 1.5 : 1;
    context.beginPath();
    context.roundRect(x - width / 2, y - 11, width, 22, 11);
    context.fill();
    context.stroke();
    context.fillStyle = cable.health === "doubtful" ? colors.doubtful : live ? ink : colors.text;
    context.fillText(text, x, y + 1);
    context.globalAlpha = 1;
  }

  /** Dots that move along cables with traffic, the faster the more there is. */
  private flows(cables: Cable[]): void {
    const moving = cables.filter((cable) => cable.health !== "bad" && this.store.rates.has(cable.name));
    if (!moving.length || moving.length > MAX_FLOWS || this.scale < 0.25) return;
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const { context } = this;
    for (const cable of moving) {
      const [a, b] = this.ends(cable);
      const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
      const rates = this.store.rates.get(cable.name) ?? [0, 0];
      context.globalAlpha = this.dimmed(cable.users) ? 0.25 : 1;
      context.fillStyle = cable.users[0] ? this.tint(cable.users[0]) : this.colors.accent;
      for (const [way, rate] of rates.entries()) {
        if (!rate) continue;
        const speed = 20 + 22 * Math.log10(rate / 1e4);
        const passed = still ? 0 : (performance.now() / 1000) * speed;
        for (let at = passed % 64; at < length; at += 64) {
          const share = way === 0 ? at / length : 1 - at / length;
          context.beginPath();
          context.arc(a.x + (b.x - a.x) * share, a.y + (b.y - a.y) * share, 4.2, 0, 2 * Math.PI);
          context.fill();
        }
      }
    }
    context.globalAlpha = 1;
    if (still || this.flowing) return;
    this.flowing = window.setTimeout(() => {
      this.flowing = 0;
      this.update();
    }, FLOW_MS);
  }

  private card(mac: Mac, copying: number | undefined): void {
    const { context, colors, scale } = this;
    const { x, y } = this.place(mac.name);
    if (!this.visible({ x, y })) return;
    const groups = mac.ranks.map((rank) => rank.group);
    const [left, top] = [x - WIDTH / 2, y - HEIGHT / 2];
    context.globalAlpha = this.dimmed(groups) && mac.health !== "bad" ? 0.4 : 1;
    const selected = this.selected === mac.id;
    const edge =
      mac.health === "bad" ? colors.bad : mac.health === "doubtful" ? colors.doubtful : groups[0] ? this.tint(groups[0]) : colors.line;
    context.beginPath();
    context.roundRect(left, top, WIDTH, HEIGHT, 14);
    if (selected) {
      context.strokeStyle = colors.accent;
      context.lineWidth = 9;
      context.stroke();
    }
    // Opaque even where the card is faint, so that no cable shows through.
    const faint = context.globalAlpha;
    context.globalAlpha = 1;
    context.fillStyle = scale < NAMES_FROM ? this.small(mac) : colors.card;
    context.fill();
    context.globalAlpha = faint;
    context.strokeStyle = edge;
    const border = mac.health === "idle" ? Math.min(7, Math.max(1.5, 1 / scale)) : Math.min(14, Math.max(2.2, 1.3 / scale));
    context.lineWidth = border;
    context.stroke();
    if (scale >= NAMES_FROM) this.inside(mac, left, top, copying);
    else if (scale * WIDTH >= NAMED_WIDTH) {
      context.textAlign = "center";
      context.textBaseline = "middle";
      // Long names often differ at their end only, so the end is kept; a name that nearly fits is drawn smaller.
      const { text, size } = this.fitted(mac.name, USUAL / scale, WIDTH - border - 2 * (BESIDE_NAME / scale), true);
      context.font = `600 ${size}px ${FONT}`;
      context.fillStyle = mac.health === "bad" ? colors.card : colors.text;
      context.fillText(text, x, y);
    }
    context.globalAlpha = 1;
  }

  /** What fills a card that has no dot for the health of its Mac. */
  private small(mac: Mac): string {
    const { colors, context } = this;
    if (mac.health === "bad") return colors.bad;
    const group = mac.ranks[0]?.group;
    return group === undefined ? colors.card : mixed(colors.card, this.tint(group, colors.dark ? 0.3 : 0.5), context);
  }

  private inside(mac: Mac, left: number, top: number, copying: number | undefined): void {
    const { context, colors, scale } = this;
    context.fillStyle = { good: colors.good, idle: colors.quiet, doubtful: colors.doubtful, bad: colors.bad }[mac.health];
    const full = scale >= DETAILS_FROM;
    const middle = full ? top + 22 : top + HEIGHT / 2;
    context.beginPath();
    context.arc(left + 18, middle, full ? 5 : 6, 0, 2 * Math.PI);
    context.fill();
    context.textAlign = "left";
    context.textBaseline = "middle";
    const marks = mac.ranks.length > 1 ? 12 * Math.min(5, mac.ranks.length) : 0;
    this.text(mac.name, left + 31, middle + 0.5, full ? 15 : 20, 600, colors.text, WIDTH - 44 - marks, !full);
    if (mac.ranks.length > 1) this.marks(mac, left, middle);
    if (!full) return;
    const known = [mac.chip, mac.memory && bytes(mac.memory)].filter(Boolean).join(" · ");
    const below = mac.health === "bad" ? mac.problem.split(":")[0] ?? "" : copying === undefined ? known : `gets weights · ${percent(copying, 1)}`;
    this.text(below, left + 14, top + 43.5, 12, 400, mac.health === "bad" ? colors.bad : colors.quiet, WIDTH - 28);
    const [x, y, width] = [left + 14, top + 60, WIDTH - 28];
    context.fillStyle = colors.line;
    context.beginPath();
    context.roundRect(x, y, width, 5, 2.5);
    context.fill();
    const share = copying ?? (mac.gpuLimit ? Math.min(1, mac.gpuReserved / mac.gpuLimit) : 0);
    if (share > 0) {
      context.fillStyle = copying !== undefined ? colors.accent : this.tint(mac.ranks[0]?.group ?? "");
      context.beginPath();
      context.roundRect(x, y, Math.max(5, width * share), 5, 2.5);
      context.fill();
    }
  }

  /** The colors of all groups of a Mac that has several. */
  private marks(mac: Mac, left: number, y: number): void {
    const groups = [...new Set(mac.ranks.map((rank) => rank.group))].slice(0, 5);
    for (const [at, group] of groups.reverse().entries()) {
      this.context.fillStyle = this.tint(group);
      this.context.beginPath();
      this.context.roundRect(left + WIDTH - 22 - at * 12, y - 5, 9, 10, 2.5);
      this.context.fill();
    }
  }

  /** A Mac that is known only as the end of a cable. */
  private stranger(name: string): void {
    const { context, colors, scale } = this;
    const { x, y } = this.place(name);
    if (!this.visible({ x, y })) return;
    context.beginPath();
    context.roundRect(x - WIDTH / 2, y - HEIGHT / 2, WIDTH, HEIGHT, 14);
    context.fillStyle = colors.back;
    context.fill();
    context.setLineDash([6, 5]);
    context.strokeStyle = colors.quiet;
    context.lineWidth = 1.5;
    context.stroke();
    context.setLineDash([]);
    if (scale < NAMES_FROM) return;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const full = scale >= DETAILS_FROM;
    this.text(name, x, full ? y - 9 : y, full ? 15 : 20, 600, colors.quiet, WIDTH - 20);
    if (full) this.text("there is no such Node", x, y + 12, 12, 400, colors.quiet, WIDTH - 20);
  }

  private copies(): Map<string, number> {
    const found = new Map<string, number>();
    for (const model of this.store.models.values()) {
      for (const copy of model.copies) if (copy.bytes) found.set(copy.mac, copy.done / copy.bytes);
      for (const group of model.groups) {
        if (group.state !== "Loading" || !group.total) continue;
        for (const name of group.macs) found.set(name, group.loaded / group.total);
      }
    }
    return found;
  }

  private text(text: string, x: number, y: number, size: number, weight: number, color: string, room: number, end = false): void {
    const { context } = this;
    context.font = `${weight} ${size}px ${FONT}`;
    context.fillStyle = color;
    context.fillText(this.cut(text, size, weight, room, end), x, y);
  }

  /** As much of a text as fits, in the font of the context, which has this size and weight. */
  private cut(text: string, size: number, weight: number, room: number, end: boolean): string {
    const { context } = this;
    const key = `${size} ${weight} ${room} ${end} ${text}`;
    let fitting = this.widths.get(key);
    if (fitting === undefined) {
      fitting = text;
      while (fitting.length > 1 && context.measureText(fitting).width > room) {
        fitting = end ? `…${fitting.replace(/^…/, "").slice(1)}` : `${fitting.replace(/…$/, "").slice(0, -1)}…`;
      }
      if (this.widths.size > 5000) this.widths.clear();
      this.widths.set(key, fitting);
    }
    return fitting;
  }

  private halo(text: string, x: number, y: number, color: string): void {
    const { context } = this;
    context.lineWidth = 5;
    context.lineJoin = "round";
    context.strokeStyle = this.colors.back;
    context.strokeText(text, x, y);
    context.fillStyle = color;
    context.fillText(text, x, y);
  }

  // --- input ---

  private pointer(): void {
    const { canvas } = this;
    const pointers = new Map<number, Point>();
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
      if (pointers.size === 1) moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const old = pointers.get(event.pointerId);
      if (!old) {
        canvas.classList.toggle("pointing", this.hit(event.offsetX, event.offsetY) !== undefined);
        return;
      }
      const now = { x: event.offsetX, y: event.offsetY };
      const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
      moved += Math.hypot(now.x - old.x, now.y - old.y);
      if (other) {
        const factor = Math.hypot(now.x - other.x, now.y - other.y) / Math.max(1, Math.hypot(old.x - other.x, old.y - other.y));
        this.zoom(factor, other.x, other.y);
      } else if (moved > 4) {
        this.left -= (now.x - old.x) / this.scale;
        this.top -= (now.y - old.y) / this.scale;
        this.touched = true;
        this.update();
      }
      pointers.set(event.pointerId, now);
    });
    const end = (event: PointerEvent) => {
      if (!pointers.delete(event.pointerId) || event.type === "pointercancel" || moved > 4) return;
      this.onselect(this.hit(event.offsetX, event.offsetY));
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.offsetX, event.offsetY);
      },
      { passive: false },
    );
    canvas.addEventListener("dblclick", () => this.fit());
  }

  private hit(screenX: number, screenY: number): string | undefined {
    const [x, y] = [this.left + screenX / this.scale, this.top + screenY / this.scale];
    for (const mac of this.store.macs.values()) {
      const at = this.places.get(mac.name);
      if (at && Math.abs(at.x - x) < WIDTH / 2 && Math.abs(at.y - y) < HEIGHT / 2) return mac.id;
    }
    let nearest = 9 / this.scale;
    let found: string | undefined;
    for (const cable of this.store.cables.values()) {
      const away = distance({ x, y }, ...this.ends(cable));
      if (away < nearest) [nearest, found] = [away, cable.id];
    }
    return found;
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const steps: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = steps[event.key];
    if (step && event.shiftKey) {
      this.left += (step[0] * 80) / this.scale;
      this.top += (step[1] * 80) / this.scale;
      this.touched = true;
      this.update();
    } else if (step) this.walk(...step);
    else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(0.8);
    else if (event.key === "0") this.fit();
    else if (event.key === "Escape") this.onselect(undefined);
    else return;
    event.preventDefault();
  }

  /** Selects the nearest Mac in a direction. */
  private walk(dx: number, dy: number): void {
    const here = this.selected === undefined ? undefined : this.middle(this.selected);
    let best: string | undefined;
    let least = Infinity;
    for (const mac of this.store.macs.values()) {
      const at = this.places.get(mac.name);
      if (!at || mac.id === this.selected) continue;
      const [x, y] = here ? [at.x - here.x, at.y - here.y] : [at.x, at.y];
      const ahead = x * dx + y * dy;
      const aside = Math.abs(x * dy) + Math.abs(y * dx);
      const cost = here ? (ahead <= 1 || aside > ahead * 2 ? Infinity : ahead + 2 * aside) : x + y;
      if (cost < least) [least, best] = [cost, mac.id];
    }
    if (best === undefined) return;
    this.onselect(best);
    this.select(best, true);
  }
}

/** Whether there is too little between two texts. */
function meets(one: Box, other: Box): boolean {
  return one.left < other.right + 4 && other.left < one.right + 4 && one.top < other.bottom + 3 && other.top < one.bottom + 3;
}

function pairOf(cable: Cable): string {
  return [cable.ends[0][0], cable.ends[1][0]].sort().join("\n");
}

function percent(part: number, whole: number): string {
  return `${Math.floor((100 * part) / whole)} %`;
}

function short(text: string, most: number): string {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

/** Without the namespace, unless it is needed to tell models apart. */
export function shortName(full: string): string {
  return full.startsWith("default/") ? full.slice(8) : full;
}

function distance(point: Point, a: Point, b: Point): number {
  const [dx, dy] = [b.x - a.x, b.y - a.y];
  const share = Math.min(1, Math.max(0, ((point.x - a.x) * dx + (point.y - a.y) * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(point.x - a.x - share * dx, point.y - a.y - share * dy);
}

/** The convex hull, by Andrew's monotone chain. */
function hull(points: Point[]): Point[] {
  const sorted = [...points].sort((one, other) => one.x - other.x || one.y - other.y);
  if (sorted.length < 3) return sorted;
  const half = (list: Point[]): Point[] => {
    const made: Point[] = [];
    for (const point of list) {
      for (;;) {
        const [a, b] = [made[made.length - 2], made[made.length - 1]];
        if (!a || !b || (b.x - a.x) * (point.y - a.y) - (b.y - a.y) * (point.x - a.x) > 0) break;
        made.pop();
      }
      made.push(point);
    }
    made.pop();
    return made;
  };
  return [...half(sorted), ...half(sorted.reverse())];
}

const mixtures = new Map<string, string>();
let probe: CanvasRenderingContext2D | undefined;

/** The opaque color of a translucent one on a background. */
function mixed(back: string, front: string, context: CanvasRenderingContext2D): string {
  const key = `${back}|${front}`;
  const known = mixtures.get(key);
  if (known) return known;
  probe ??= new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true }) as unknown as CanvasRenderingContext2D;
  for (const color of [back, front]) {
    (probe ?? context).fillStyle = color;
    (probe ?? context).fillRect(0, 0, 1, 1);
  }
  const [red, green, blue] = (probe ?? context).getImageData(0, 0, 1, 1).data;
  const made = `rgb(${red} ${green} ${blue})`;
  mixtures.set(key, made);
  return made;
}

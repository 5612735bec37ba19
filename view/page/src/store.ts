// What the page knows: the entities that the server sends, by id.

export type Health = "good" | "doubtful" | "bad" | "idle";

interface Shown {
  id: string;
  name: string;
  health: Health;
  problem: string;
}

export interface Mac extends Shown {
  chip: string;
  memory: number;
  gpuLimit: number;
  gpuReserved: number;
  ranks: { group: string; rank: number; state: string }[];
}

export interface Cable extends Shown {
  ends: [[string, number], [string, number]];
  connected: boolean;
  rdma: boolean;
  speed: string;
  gbps: string;
  rtt: string;
  users: string[];
}

export interface Group {
  name: string;
  state: string;
  macs: string[];
  loaded: number;
  total: number;
  message: string;
}

export interface Copy {
  mac: string;
  phase: string;
  done: number;
  bytes: number;
  rate: number;
  left: number | null;
  from: string;
  message: string;
}

export interface Model extends Shown {
  model: string;
  ready: number;
  wanted: number;
  transport: string;
  tokensPerSecond: string;
  serves: boolean;
  key: boolean;
  groups: Group[];
  copies: Copy[];
}

export type Entity = Mac | Cable | Model;

export interface Message {
  put: Entity[];
  drop: string[];
  whole?: boolean;
  notes?: string[];
  /** Of cables that are not quiet, by name: bits per second from the first end to the second, and back. */
  rates?: Record<string, [number, number]>;
  /** Why there are no rates. */
  noRates?: string;
  /** Whether only the models of an API key are shown. */
  own?: boolean;
}

export class Store {
  readonly macs = new Map<string, Mac>();
  readonly cables = new Map<string, Cable>();
  readonly models = new Map<string, Model>();
  notes: string[] = [];
  rates = new Map<string, [number, number]>();
  noRates = "";
  own = false;
  synced = false;
  /** Counts changes of anything that decides where the Macs are drawn. */
  structure = 0;
  /** Entities that a message changed from well to ill: [name, problem]. */
  news: [string, string][] = [];

  apply(message: Message): void {
    const before = this.synced;
    if (message.whole) {
      const kept = new Set(message.put.map((one) => one.id));
      for (const map of [this.macs, this.cables, this.models]) {
        for (const id of map.keys()) if (!kept.has(id)) this.drop(id);
      }
      this.synced = true;
    }
    for (const id of message.drop) this.drop(id);
    for (const entity of message.put) this.put(entity, before);
    if (message.own !== undefined) this.own = message.own;
    if (message.notes) this.notes = message.notes;
    if (message.rates) this.rates = new Map(Object.entries(message.rates));
    if (message.noRates !== undefined) this.noRates = message.noRates;
  }

  /** Forgets everything. */
  clear(): void {
    this.apply({ put: [], drop: [], whole: true, notes: [], rates: {}, noRates: "", own: false });
    this.synced = false;
  }

  get(id: string): Entity | undefined {
    return this.macs.get(id) ?? this.cables.get(id) ?? this.models.get(id);
  }

  private put(entity: Entity, announce: boolean): void {
    const old = this.get(entity.id);
    if (announce && entity.health === "bad" && old?.health !== "bad") this.news.push([entity.name, entity.problem]);
    if (entity.id.startsWith("mac/")) this.macs.set(entity.id, entity as Mac);
    else if (entity.id.startsWith("cable/")) this.cables.set(entity.id, entity as Cable);
    else this.models.set(entity.id, entity as Model);
    if (!old && !entity.id.startsWith("model/")) this.structure += 1;
  }

  private drop(id: string): void {
    if (this.macs.delete(id)) this.structure += 1;
    this.cables.delete(id);
    this.models.delete(id);
  }
}

/** The hues of groups, and how light (in percent) a text of each may be on the light page: its contrast is then at least 4.5. */
export const INKS: ReadonlyMap<number, number> = new Map([
  [212, 44], [34, 35], [152, 29], [276, 44], [322, 44], [186, 31], [58, 27], [96, 29], [244, 44], [300, 44], [128, 29], [16, 43],
]);

/** The hue of each group: the same in every page as long as the groups are the same. */
export function hues(models: Iterable<Model>): Map<string, number> {
  const names = [...models].flatMap((model) => model.groups.map((group) => group.name)).sort();
  const wheel = [...INKS.keys()];
  const found = new Map<string, number>();
  const taken = new Set<number>();
  for (const name of names) {
    let at = hash(name) % wheel.length;
    for (let tries = 0; taken.has(at) && tries < wheel.length; tries += 1) at = (at + 1) % wheel.length;
    taken.add(at);
    if (taken.size === wheel.length) taken.clear();
    found.set(name, wheel[at] ?? 212);
  }
  return found;
}

function hash(text: string): number {
  let value = 2166136261;
  for (const sign of text) value = Math.imul(value ^ (sign.codePointAt(0) ?? 0), 16777619) >>> 0;
  return value;
}

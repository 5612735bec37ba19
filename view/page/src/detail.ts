// The details of the selected entity: facts, progress, conditions and links towards the cause.

import { Chat } from "./chat";
import { bar, bits, bytes, element } from "./dom";
import { shortName } from "./draw";
import { ask, said } from "./net";
import { left } from "./side";
import type { Cable, Entity, Health, Mac, Model, Store } from "./store";

interface Condition {
  type: string;
  status: string;
  reason: string;
  message: string;
  since: string;
  health: Health;
}

interface Step {
  subject: string;
  state: "ok" | "problem" | "waiting" | "unknown" | "note";
  text: string;
  since: string | null;
}

interface Details {
  conditions: Condition[];
  why: { steps: Step[]; cause: Step | null } | null;
}

/** Phases of a group that has failed. */
const FAILED = ["BackingOff", "GaveUp"];
const ASK_MS = 1000;

export class Detail {
  onselect: (id: string) => void = () => undefined;
  onclose: () => void = () => undefined;
  private id: string | undefined;
  private shown = "";
  private content = "";
  private timer = 0;
  private readonly head = element("div");
  private readonly more = element("div");
  private chat: Chat | undefined;

  constructor(
    private readonly store: Store,
    private readonly box: HTMLElement,
  ) {
    const back = element("button", "back", "← All");
    back.type = "button";
    back.addEventListener("click", () => this.onclose());
    box.append(back, this.head, this.more);
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.onclose();
    });
  }

  show(id: string | undefined): void {
    clearTimeout(this.timer);
    this.timer = 0;
    this.id = id;
    this.shown = this.content = "";
    this.more.replaceChildren();
    this.chat?.end();
    this.chat = undefined;
    this.box.querySelector(".talk")?.remove();
    if (id === undefined) return;
    this.box.scrollTop = 0;
    this.update();
  }

  focus(): void {
    this.box.querySelector("button")?.focus();
  }

  update(): void {
    const entity = this.id === undefined ? undefined : this.store.get(this.id);
    const now = JSON.stringify([entity ?? null, entity && "ends" in entity ? this.traffic(entity) : ""]);
    const content = JSON.stringify(entity ?? null);
    if (this.id === undefined || now === this.shown) return;
    this.shown = now;
    if (!entity) {
      this.head.replaceChildren(element("h2", "", this.id.slice(this.id.indexOf("/") + 1)), element("p", "kind", "It no longer exists in the cluster."));
      this.more.replaceChildren();
      return;
    }
    this.head.replaceChildren(...this.facts(entity));
    if ("copies" in entity && entity.serves && !this.chat) {
      this.chat = new Chat(entity, this.store.own);
      this.box.insertBefore(this.chat.box, this.more);
    }
    // The cause is often in other objects, which change at about the same time.
    if (content === this.content) return;
    this.content = content;
    if (!this.timer) this.timer = window.setTimeout(() => void this.load(), this.more.hasChildNodes() ? ASK_MS : 0);
  }

  private async load(): Promise<void> {
    this.timer = 0;
    const id = this.id;
    if (id === undefined) return;
    const answer = await ask(`/api/details?id=${encodeURIComponent(id)}`).catch(() => undefined);
    if (this.id !== id) return;
    if (!answer?.ok) {
      this.more.replaceChildren(element("p", "kind", answer ? await said(answer) : "The server of this page does not answer."));
      return;
    }
    const found = (await answer.json()) as Details;
    if (this.id === id) this.more.replaceChildren(...(found.why ? why(found.why) : []), ...conditions(found.conditions));
  }

  private facts(entity: Entity): HTMLElement[] {
    const title = element("h2", "", element("span", `dot ${entity.health}`), "ends" in entity ? ends(entity) : shortName(entity.name));
    const [kind, ...rest] = "ranks" in entity ? this.mac(entity) : "ends" in entity ? this.cable(entity) : this.model(entity);
    const problem = entity.problem ? [element("p", `problem ${entity.health}`, entity.problem)] : [];
    return [title, kind as HTMLElement, ...problem, ...rest];
  }

  private mac(mac: Mac): HTMLElement[] {
    const cables = [...this.store.cables.values()].filter((cable) => cable.ends.some(([name]) => name === mac.name));
    const memory = mac.gpuLimit ? `${bytes(mac.gpuReserved)} of ${bytes(mac.gpuLimit)} reserved` : "";
    const usage = mac.gpuLimit ? [bar(mac.gpuReserved / mac.gpuLimit, `GPU memory: ${memory}`)] : [];
    return [
      element("div", "kind", "Mac"),
      pairs([
        ["Chip", mac.chip],
        ["Memory", mac.memory ? bytes(mac.memory) : ""],
        ["GPU memory", memory],
      ]),
      ...usage,
      ...this.section("Ranks", mac.ranks.map((rank) => [this.modelOf(rank.group), `${shortName(rank.group)} rank ${rank.rank}: ${rank.state}`])),
      ...this.section("Cables", cables.map((cable) => [cable.id, ends(cable)])),
    ];
  }

  private cable(cable: Cable): HTMLElement[] {
    return [
      element("div", "kind", "Thunderbolt cable"),
      pairs([
        ["Speed", cable.speed],
        ["Measured", cable.gbps && `${cable.gbps} Gb/s`],
        ["Round trip", cable.rtt],
        ["RDMA", cable.rdma ? "yes" : "no"],
        ["Traffic now", this.traffic(cable)],
      ]),
      ...this.section("Ends", cable.ends.map(([name]) => [`mac/${name}`, name])),
      ...this.section("Used by", cable.users.map((group) => [this.modelOf(group), shortName(group)])),
    ];
  }

  private traffic(cable: Cable): string {
    if (!cable.connected) return "";
    if (this.store.noRates) return `not known: ${this.store.noRates}`;
    const [there, back] = this.store.rates.get(cable.name) ?? [0, 0];
    const [a, b] = [cable.ends[0][0], cable.ends[1][0]];
    const text = there || back ? `${a} → ${b} ${bits(there)}, ${b} → ${a} ${bits(back)}` : "quiet";
    // macOS does not count what RDMA moves.
    return cable.rdma ? `${text} (RDMA is not counted)` : text;
  }

  private model(model: Model): HTMLElement[] {
    const copies = model.copies.map((copy) => {
      const share = copy.bytes ? copy.done / copy.bytes : 0;
      const rate = copy.rate ? `${bytes(copy.rate)}/s` : "";
      const text = [copy.phase, copy.bytes ? `${bytes(copy.done)} of ${bytes(copy.bytes)}` : "", rate, left(copy.left), copy.from && `from ${copy.from}`, copy.message];
      return element("div", "", element("b", "", copy.mac), ` ${text.filter(Boolean).join(" · ")}`, bar(share, `copy to ${copy.mac}`));
    });
    const groups = model.groups.map((group) => {
      const loading = group.total && group.state === "Loading" ? [bar(group.loaded / group.total, `loading of ${group.name}`)] : [];
      const text = group.message ? `: ${group.message}` : "";
      const macs = group.macs.map((name) => this.link(`mac/${name}`, name));
      return element("div", "step", element("span", `dot ${group.state === "Ready" ? "good" : FAILED.includes(group.state) ? "bad" : "doubtful"}`), element("div", "", element("b", "", shortName(group.name)), ` ${group.state}${text}`, ...loading, element("div", "links", ...macs)));
    });
    return [
      element("div", "kind", model.model),
      pairs([
        ["Groups", model.wanted || !this.store.own ? `${model.ready} of ${model.wanted} ready` : ""],
        ["Transport", model.transport],
        ["Speed", model.tokensPerSecond && `${model.tokensPerSecond} tokens/s`],
      ]),
      ...(copies.length ? [element("h3", "", "Copies"), ...copies] : []),
      ...(groups.length ? [element("h3", "", "Groups"), ...groups] : []),
    ];
  }

  private modelOf(group: string): string {
    return [...this.store.models.values()].find((model) => model.groups.some((one) => one.name === group))?.id ?? "";
  }

  private section(title: string, links: [string, string][]): HTMLElement[] {
    return links.length ? [element("h3", "", title), element("div", "links", ...links.map(([id, text]) => this.link(id, text)))] : [];
  }

  private link(id: string, text: string): HTMLElement {
    if (!this.store.get(id)) return element("span", "", text);
    const made = element("button", "go", text);
    made.type = "button";
    made.addEventListener("click", () => this.onselect(id));
    return made;
  }
}

function ends(cable: Cable): string {
  return cable.ends.map(([node, port]) => `${node} tb${port}`).join(" ↔ ");
}

function pairs(entries: [string, string][]): HTMLElement {
  const known = entries.filter(([, value]) => value);
  return element("dl", "", ...known.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]));
}

function why(found: NonNullable<Details["why"]>): HTMLElement[] {
  const dots = { ok: "good", problem: "bad", waiting: "doubtful", unknown: "idle", note: "idle" } as const;
  // Conditions are shown below, with their messages.
  const steps = found.steps
    .filter((step) => !step.subject.startsWith("ModelDeployment "))
    .map((step) =>
      element("div", "step", element("span", `dot ${dots[step.state]}`), element("p", "", element("b", "", step.subject), `: ${step.text}`)),
    );
  const fault = found.cause?.state === "problem";
  const cause = found.cause
    ? [element("h3", "", fault ? "Cause" : "Waits for"), element("div", fault ? "cause" : "cause doubtful", `${found.cause.subject}: ${found.cause.text}`)]
    : [];
  if (!steps.length) return cause;
  const path = element("details", "path", element("summary", "", found.cause ? "How it was found" : "Parts"), ...steps);
  path.open = found.cause !== null;
  return [...cause, path];
}

function conditions(found: Condition[]): HTMLElement[] {
  if (!found.length) return [];
  const rows = found.map((one) => {
    const since = element("small", "", ago(one.since));
    since.title = one.since;
    const text = [one.reason, one.message].filter(Boolean).join(": ");
    return element("div", "condition", element("div", "head", element("span", `dot ${one.health}`), `${one.type}: ${one.status}`, since), element("p", "", text));
  });
  return [element("h3", "", "Conditions"), element("div", "", ...rows)];
}

function ago(time: string): string {
  const passed = (Date.now() - Date.parse(time)) / 1000;
  if (!Number.isFinite(passed)) return "";
  if (passed < 120) return `${Math.max(0, Math.round(passed))} s ago`;
  if (passed < 7200) return `${Math.round(passed / 60)} min ago`;
  return passed < 172800 ? `${Math.round(passed / 3600)} h ago` : `${Math.round(passed / 86400)} d ago`;
}

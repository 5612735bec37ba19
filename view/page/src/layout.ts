// Where the Macs stand. It follows from the Macs' names and the cables alone, so it is the same in every page.

import { forceCollide, forceLink, forceManyBody, forceSimulation, forceX, forceY, type SimulationNodeDatum } from "d3-force";

export const WIDTH = 172;
export const HEIGHT = 76;
const GAP = 90;
const CIRCLE = 12;
const CHAIN = 5;
const TICKS = 160;
/** Between parts: beside each other, and below, where the names of groups are. */
const BESIDE = 84;
const BELOW = 104;

export interface Point {
  x: number;
  y: number;
}

interface Body extends SimulationNodeDatum {
  name: string;
}

interface Part {
  places: Map<string, Point>;
  width: number;
  height: number;
}

/** Places the centers of Macs, by name. `cables`: pairs of names. */
export function layout(names: readonly string[], cables: readonly (readonly [string, string])[], aspect = 1.5): Map<string, Point> {
  const neighbors = new Map<string, Set<string>>([...names].sort().map((name) => [name, new Set()]));
  for (const [a, b] of cables) {
    if (a === b) continue;
    neighbors.get(a)?.add(b);
    neighbors.get(b)?.add(a);
  }
  const parts = components(neighbors).map((part) => placed(part, neighbors));
  return packed(parts, aspect);
}

/** Macs that cables connect, each part in the order of a walk along the cables; single Macs together at the end. */
function components(neighbors: Map<string, Set<string>>): string[][] {
  const seen = new Set<string>();
  const parts: string[][] = [];
  const single: string[] = [];
  for (const start of neighbors.keys()) {
    if (seen.has(start)) continue;
    const walk: string[] = [];
    const waiting = [start];
    while (waiting.length) {
      const one = waiting.pop() as string;
      if (seen.has(one)) continue;
      seen.add(one);
      walk.push(one);
      waiting.push(...[...(neighbors.get(one) ?? [])].filter((next) => !seen.has(next)).sort().reverse());
    }
    if (walk.length === 1) single.push(start);
    else parts.push(walk);
  }
  parts.sort((one, other) => other.length - one.length || ((one[0] ?? "") < (other[0] ?? "") ? -1 : 1));
  if (single.length) parts.push(single);
  return parts;
}

function placed(part: string[], neighbors: Map<string, Set<string>>): Part {
  const wired = part.some((name) => neighbors.get(name)?.size);
  if (!wired) return boxed(grid(part));
  const chain = part.length <= CHAIN ? inOrder(part, neighbors) : undefined;
  return boxed(chain ? row(chain) : part.length <= CIRCLE ? circle(part) : forces(part, neighbors));
}

/** The Macs of a chain from one end to the other; undefined if the cables are no chain. */
function inOrder(part: string[], neighbors: Map<string, Set<string>>): string[] | undefined {
  const next = (name: string) => [...(neighbors.get(name) ?? [])].filter((one) => part.includes(one)).sort();
  const ends = part.filter((name) => next(name).length === 1).sort();
  if (ends.length !== 2 || part.some((name) => next(name).length > 2)) return undefined;
  const found = [ends[0] as string];
  while (found.length < part.length) {
    const following = next(found[found.length - 1] as string).find((name) => !found.includes(name));
    if (following === undefined) return undefined;
    found.push(following);
  }
  return found;
}

function row(part: string[]): Map<string, Point> {
  return new Map(part.map((name, at) => [name, { x: at * (WIDTH + 190), y: 0 }]));
}

function grid(part: string[]): Map<string, Point> {
  const columns = Math.max(1, Math.ceil(Math.sqrt(part.length * 0.7)));
  return new Map(
    part.map((name, at) => [name, { x: (at % columns) * (WIDTH + 36), y: Math.floor(at / columns) * (HEIGHT + 36) }]),
  );
}

function circle(part: string[]): Map<string, Point> {
  const count = part.length;
  // Two Macs at the top: cables between neighbors are then horizontal where there is most room for their texts.
  const radius = Math.max(170, (count * (WIDTH + GAP)) / (2 * Math.PI));
  const turn = Math.PI / count - Math.PI / 2 - (2 * Math.PI) / count;
  return new Map(
    part.map((name, at) => {
      const angle = (2 * Math.PI * at) / count + turn;
      return [name, { x: 1.28 * radius * Math.cos(angle), y: radius * Math.sin(angle) }];
    }),
  );
}

function forces(part: string[], neighbors: Map<string, Set<string>>): Map<string, Point> {
  const bodies: Body[] = part.map((name) => ({ name }));
  const links = part.flatMap((name) =>
    [...(neighbors.get(name) ?? [])].filter((other) => name < other).map((other) => ({ source: name, target: other })),
  );
  // d3-force starts from a spiral and uses a generator with a fixed seed, so the result is always the same.
  const simulation = forceSimulation(bodies)
    .force("link", forceLink<Body, { source: string | Body; target: string | Body }>(links).id((body) => body.name).distance(230))
    .force("charge", forceManyBody<Body>().strength(-2600).distanceMax(1800))
    .force("collide", forceCollide<Body>(WIDTH * 0.62))
    .force("x", forceX<Body>().strength(0.03))
    .force("y", forceY<Body>().strength(0.04))
    .alphaDecay(1 - 0.001 ** (1 / TICKS))
    .stop();
  simulation.tick(TICKS);
  return new Map(bodies.map((body) => [body.name, { x: body.x ?? 0, y: body.y ?? 0 }]));
}

function boxed(places: Map<string, Point>): Part {
  const xs = [...places.values()].map((point) => point.x);
  const ys = [...places.values()].map((point) => point.y);
  const left = Math.min(...xs) - WIDTH / 2;
  const top = Math.min(...ys) - HEIGHT / 2;
  for (const point of places.values()) {
    point.x -= left;
    point.y -= top;
  }
  return { places, width: Math.max(...xs) - left + WIDTH / 2, height: Math.max(...ys) - top + HEIGHT / 2 };
}

/** Puts the parts into rows: of several widths, that which shows the Macs largest in a window of this shape. */
function packed(parts: Part[], aspect: number): Map<string, Point> {
  const area = parts.reduce((sum, part) => sum + (part.width + BESIDE) * (part.height + BELOW), 0);
  const least = Math.max(...parts.map((part) => part.width));
  let best: { places: Map<string, Point>; size: number } | undefined;
  for (const share of [0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.35, 1.5, 1.7, 2]) {
    const found = rows(parts, Math.max(least, share * Math.sqrt(area * aspect)));
    const size = Math.max(found.width / aspect, found.height);
    if (!best || size < best.size) best = { places: found.places, size };
  }
  return best?.places ?? new Map();
}

function rows(parts: Part[], limit: number): Part {
  const lines: { parts: Part[]; width: number; height: number }[] = [];
  for (const part of parts) {
    const line = lines[lines.length - 1];
    if (line && line.width + BESIDE + part.width <= limit + 1) {
      line.parts.push(part);
      line.width += BESIDE + part.width;
      line.height = Math.max(line.height, part.height);
    } else lines.push({ parts: [part], width: part.width, height: part.height });
  }
  const width = Math.max(...lines.map((line) => line.width));
  const places = new Map<string, Point>();
  // Rows of few parts stand in the middle; in a grid of many, columns matter more.
  const centered = lines.length <= 3;
  let y = 0;
  for (const line of lines) {
    let x = centered ? (width - line.width) / 2 : 0;
    for (const part of line.parts) {
      const down = centered ? (line.height - part.height) / 2 : 0;
      for (const [name, point] of part.places) places.set(name, { x: x + point.x, y: y + down + point.y });
      x += part.width + BESIDE;
    }
    y += line.height + BELOW;
  }
  return { places, width, height: y - BELOW };
}

// The session and the stream of changes.

import type { Message } from "./store";

const KEPT = "thunderfleet-session";
const SILENT_MS = 25_000;
const MAX_LINE = 64 * 1024 * 1024;

/** Whether a router serves the page: then the session is the credential itself, and a chat goes to the router's API. */
export let byRouter = false;

/** Prepares the session. Returns why there is none, "" if a router waits for a credential, undefined if there is one. */
export async function open(): Promise<string | undefined> {
  const token = location.hash.slice(1);
  if (token) history.replaceState(null, "", location.pathname);
  const way = await fetch("/session").catch(() => undefined);
  byRouter = way?.ok ? (await way.json()).credential === true : false;
  const kept = sessionStorage.getItem(KEPT) !== null;
  if (byRouter) return kept ? undefined : "";
  if (!token) return kept ? undefined : "This page needs the address that `thunderfleet ui` prints.";
  const answer = await fetch("/session", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ token }),
  }).catch(() => undefined);
  if (answer?.ok) {
    sessionStorage.setItem(KEPT, String((await answer.json()).session));
    return undefined;
  }
  // A page that is loaded again with the address in its history has a session already.
  if (kept) return undefined;
  return answer ? await said(answer) : "The server of this page does not answer.";
}

/** Takes a credential for a router. It stays in this tab. */
export function keep(credential: string): void {
  sessionStorage.setItem(KEPT, credential);
}

export async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (!headers.has("Authorization")) headers.set("Authorization", `Bearer ${sessionStorage.getItem(KEPT) ?? ""}`);
  return fetch(path, { ...init, headers });
}

export async function said(answer: Response): Promise<string> {
  try {
    const found = (await answer.json()) as { message?: unknown };
    return typeof found.message === "string" ? found.message : `the server answered ${answer.status}`;
  } catch {
    return `the server answered ${answer.status}`;
  }
}

export interface Listener {
  message(message: Message): void;
  /** Whether changes arrive, and why not. */
  state(connected: boolean, reason: string): void;
  /** The session has ended. */
  closed(reason: string): void;
}

/** Follows the fleet, and connects again when the connection breaks. */
export async function follow(listener: Listener): Promise<void> {
  for (let failures = 0; ; failures += 1) {
    const stop = new AbortController();
    try {
      const answer = await ask("/api/feed", { signal: stop.signal });
      if (answer.status === 401 || (byRouter && answer.status === 403)) {
        sessionStorage.removeItem(KEPT);
        listener.closed(await said(answer));
        return;
      }
      if (!answer.ok || !answer.body) throw new Error(await said(answer));
      await lines(answer.body, stop, (text) => {
        failures = 0;
        listener.state(true, "");
        if (text) listener.message(JSON.parse(text) as Message);
      });
      throw new Error("the server of this page has ended the connection");
    } catch (error) {
      const reason = error instanceof TypeError ? "the server of this page does not answer" : String((error as Error).message);
      listener.state(false, reason);
    } finally {
      stop.abort();
    }
    await new Promise((resolve) => setTimeout(resolve, Math.min(10_000, 500 * 2 ** Math.min(failures, 5))));
  }
}

async function lines(body: ReadableStream<Uint8Array>, stop: AbortController, take: (line: string) => void): Promise<void> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let parts: string[] = [];
  let length = 0;
  for (;;) {
    const alarm = setTimeout(() => stop.abort(new Error("the server of this page is silent")), SILENT_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(alarm));
    if (done) return;
    const pieces = decoder.decode(value, { stream: true }).split("\n");
    for (const [at, piece] of pieces.entries()) {
      parts.push(piece);
      length += piece.length;
      if (length > MAX_LINE) throw new Error("the server sent too much at once");
      if (at < pieces.length - 1) {
        take(parts.join(""));
        parts = [];
        length = 0;
      }
    }
  }
}

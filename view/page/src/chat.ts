// A chat with a model. Answers are shown as text, never as markup.

import { element } from "./dom";
import { ask, byRouter, said } from "./net";
import type { Model } from "./store";

interface Turn {
  role: "user" | "assistant";
  content: string;
}

const MAX_TURNS = 100;
const MAX_CHARACTERS = 200_000;

export class Chat {
  readonly box = element("section", "talk", element("h3", "", "Chat"));
  private turns: Turn[] = [];
  private readonly talk = element("div", "talk");
  private readonly input = element("textarea");
  private readonly key = element("input");
  private readonly send = element("button", "go", "Send");
  private running: AbortController | undefined;

  /** `own`: whether the credential of the page is an API key of the model. */
  constructor(
    private readonly model: Model,
    private readonly own: boolean,
  ) {
    this.talk.setAttribute("aria-live", "polite");
    this.input.rows = 2;
    this.input.maxLength = 100_000;
    this.input.placeholder = "Ask the model";
    this.input.setAttribute("aria-label", "Message to the model");
    this.key.type = "password";
    this.key.placeholder = "API key of this model";
    this.key.setAttribute("aria-label", "API key of this model");
    this.key.autocomplete = "off";
    const form = element("form", "", ...(model.key && !own ? [this.key] : []), this.input, this.send);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.running.abort();
      else void this.ask();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    this.box.append(this.talk, form);
  }

  end(): void {
    this.running?.abort();
  }

  private async ask(): Promise<void> {
    const content = this.input.value.trim();
    if (!content) return;
    this.input.value = "";
    const turns: Turn[] = [...this.turns, { role: "user", content }].slice(-MAX_TURNS) as Turn[];
    this.talk.append(element("div", "turn user", content));
    const text = document.createTextNode("");
    const bubble = element("div", "turn", text);
    this.talk.append(bubble);
    this.running = new AbortController();
    this.send.textContent = "Stop";
    try {
      await this.stream(turns, text, this.running.signal);
    } catch (error) {
      if (!this.running.signal.aborted) {
        bubble.classList.add("failed");
        text.data += `${text.data ? "\n" : ""}${error instanceof TypeError ? "the server of this page does not answer" : String((error as Error).message)}`;
        this.finish();
        return;
      }
    }
    if (text.data) this.turns = [...turns, { role: "assistant", content: text.data }];
    this.finish();
  }

  private finish(): void {
    this.running = undefined;
    this.send.textContent = "Send";
  }

  private async stream(messages: Turn[], text: Text, signal: AbortSignal): Promise<void> {
    const headers: Record<string, string> = { "Content-Type": "application/json" };
    if (this.key.value) headers["X-Api-Key"] = this.key.value;
    const given = { model: this.model.name, messages };
    // A router's API takes API keys only, so a viewer's token is not sent to it.
    if (byRouter && !this.own) headers["Authorization"] = "";
    const [path, body] = byRouter ? ["/v1/chat/completions", { ...given, stream: true }] : ["/api/chat", given];
    const answer = await ask(path, { method: "POST", headers, signal, body: JSON.stringify(body) });
    if (!answer.ok || !answer.body) throw new Error(await refusal(answer));
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Error("the answer ended early");
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (!line.startsWith("data: ")) continue;
        if (line.slice(6).trim() === "[DONE]") return;
        const event = JSON.parse(line.slice(6));
        if (event.error) throw new Error(String(event.error.message ?? event.error));
        const piece = event.choices?.[0]?.delta?.content;
        if (typeof piece === "string" && text.length < MAX_CHARACTERS) text.appendData(piece);
      }
    }
  }
}

async function refusal(answer: Response): Promise<string> {
  if (answer.status === 401) return "the model requires an API key that it accepts";
  try {
    const found = await answer.clone().json();
    if (typeof found.error?.message === "string") return found.error.message;
  } catch {
    // It is not the model's server that answered.
  }
  return said(answer);
}

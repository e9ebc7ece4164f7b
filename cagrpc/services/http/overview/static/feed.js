// Reads the server's stream of events and connects again when it ends. EventSource cannot send a token, so the stream is
// read from the body of a fetch.

const FIRST_PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 30000;
const SILENCE_MS = 25000; // the server says something every 10 s
const HIDDEN_MS = 60000; // a page that nobody looks at for longer gives its place away
const KEY = "cagrpc-token";

export class Feed {
  /** `section(name, data)` has news; `state(kind, text)` is one of live, lost, paused, refused. */
  constructor({ section, state }) {
    this.section = section;
    this.state = state;
    this.last = "";
    this.reading = null;
    this.wake = () => {};
    this.paused = false;
    let timer = null;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(timer);
      if (document.hidden) {
        timer = setTimeout(() => this.pause(), HIDDEN_MS);
      } else if (this.paused) {
        this.paused = false;
        this.wake();
      }
    });
    window.addEventListener("online", () => this.wake());
  }

  get token() {
    return sessionStorage.getItem(KEY) ?? "";
  }

  /** Read with another token, or with none. What the last one was shown is told anew. */
  use(token) {
    if (token) sessionStorage.setItem(KEY, token);
    else sessionStorage.removeItem(KEY);
    this.last = "";
    this.reading?.abort();
    this.wake();
  }

  pause() {
    this.paused = true;
    this.reading?.abort();
  }

  async run() {
    for (let pause = FIRST_PAUSE_MS; ; ) {
      const sent = this.token;
      const { status, text, began } = await this.read(sent);
      if (began) pause = FIRST_PAUSE_MS;
      if (this.token !== sent) continue; // another one was given meanwhile
      if (this.paused) {
        this.state("paused", "paused, as this page is not looked at");
        await this.until(null);
      } else if (status === 401 || (status === 403 && sent)) {
        sessionStorage.removeItem(KEY);
        this.state("refused", text);
        await this.until(null);
      } else {
        this.state("lost", text);
        await this.until(pause * (0.75 + Math.random() / 2));
        pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
      }
    }
  }

  /** Wait so long, or until there is a reason to go on. */
  until(milliseconds) {
    return new Promise((resolve) => {
      const timer = milliseconds === null ? null : setTimeout(resolve, milliseconds);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** Read one stream to its end, and return why it ended. */
  async read(token) {
    const reading = (this.reading = new AbortController());
    let began = false;
    let watch = null;
    const heard = () => {
      clearTimeout(watch);
      watch = setTimeout(() => reading.abort(), SILENCE_MS);
    };
    try {
      heard();
      const headers = {};
      if (token) headers.Authorization = `Bearer ${token}`;
      if (this.last) headers["Last-Event-ID"] = this.last;
      const response = await fetch("events", { headers, cache: "no-store", credentials: "omit", redirect: "error", signal: reading.signal });
      if (!response.ok) return { status: response.status, text: (await response.text()).trim() || response.statusText, began };
      began = true;
      this.state("live", "");
      for await (const { name, data, id } of events(response.body, heard)) {
        if (name === "end") return { ...data, began };
        this.section(name, data);
        if (id) this.last = id;
      }
      return { status: 0, text: "the server ended the connection", began };
    } catch (error) {
      return { status: 0, text: reading.signal.aborted ? "the server is silent" : "the server cannot be reached", began };
    } finally {
      clearTimeout(watch);
      this.reading = null;
    }
  }
}

async function* events(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const event = parsed(text.slice(0, end));
      if (event !== null) yield event;
    }
  }
}

function parsed(block) {
  const fields = {};
  for (const line of block.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  return fields.event === undefined ? null : { name: fields.event, data: JSON.parse(fields.data), id: fields.id ?? "" };
}

// Requests to the server that served this page.

import { encodeName } from "./queue_names.js";

const GET_TIMEOUT_MS = 10_000;
const POST_TIMEOUT_MS = 60_000;

/** The server cannot be reached, or its response is incomplete. */
export class NoAnswer extends Error {}

/** The server refused or failed the request. `message` is the server's error message. */
export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function request(path, method, timeoutMs) {
  let response;
  try {
    response = await fetch(path, { method, cache: "no-store", signal: AbortSignal.timeout(timeoutMs) });
  } catch {
    throw new NoAnswer("The server does not respond.");
  }
  if (response.ok) {
    try {
      return await response.json();
    } catch {
      throw new NoAnswer("The server's response is incomplete.");
    }
  }
  const answer = await response.json().catch(() => ({}));
  throw new Refusal(answer?.error ?? `The server responded with ${response.status} ${response.statusText}.`, response.status);
}

function get(path) {
  return request(path, "GET", GET_TIMEOUT_MS);
}

function post(path) {
  return request(path, "POST", POST_TIMEOUT_MS);
}

function queuePath(name) {
  return `api/queue/${encodeName(name)}`;
}

/** Limits of one request for histories: the server accepts 100 names and a request line of limited length. */
const MOST_NAMES = 100;
const LONGEST_QUERY = 8_000;

function queries(names) {
  const made = [];
  let words = [];
  let length = 0;
  for (const name of names) {
    const word = `queue=${encodeName(name)}`;
    if (words.length === MOST_NAMES || (words.length && length + word.length > LONGEST_QUERY)) {
      made.push(words.join("&"));
      words = [];
      length = 0;
    }
    words.push(word);
    length += word.length + 1;
  }
  return words.length ? [...made, words.join("&")] : made;
}

export const overview = () => get("api/overview");
export const serverHistory = () => get("api/history");
export const queue = (name) => get(queuePath(name));
export const head = (name) => get(`${queuePath(name)}/head`);
export const server = () => get("api/server");

/** Return the last hour of each queue in `names`, by name. Queues without a history are omitted. */
export async function histories(names) {
  const answers = await Promise.all(queries(names).map((query) => get(`api/history?${query}`)));
  const series = Object.assign({}, ...answers.map((answer) => answer.series));
  return { ...answers.at(-1), series };
}

export const setStatus = (status) => post(`api/status/${status}`);
export const reload = () => post("api/reload");
export const shutDown = () => post("api/shutdown");
export const flush = (name) => post(`${queuePath(name)}/flush`);
export const flushExpired = (name) => post(`${queuePath(name)}/flush_expired`);
export const deleteQueue = (name) => post(`${queuePath(name)}/delete`);

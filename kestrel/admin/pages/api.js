// Requests to the server that this page comes from.

import { encodeName } from "./queue_names.js";

const LOOK_TIMEOUT_MS = 10_000;
const CHANGE_TIMEOUT_MS = 60_000;

/** The server cannot be reached, or did not answer to the end. */
export class NoAnswer extends Error {}

/** The server answered that it will not or cannot; the message is its sentence. */
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
    throw new NoAnswer("The server does not answer.");
  }
  if (response.ok) {
    try {
      return await response.json();
    } catch {
      throw new NoAnswer("The server's answer broke off.");
    }
  }
  const answer = await response.json().catch(() => ({}));
  throw new Refusal(answer?.error ?? `The server answered ${response.status} ${response.statusText}.`, response.status);
}

function look(path) {
  return request(path, "GET", LOOK_TIMEOUT_MS);
}

function change(path) {
  return request(path, "POST", CHANGE_TIMEOUT_MS);
}

function queuePath(name) {
  return `api/queue/${encodeName(name)}`;
}

/** One request for histories may name 100 queues, and a line of a request has an end. */
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

export const overview = () => look("api/overview");
export const serverHistory = () => look("api/history");
export const queue = (name) => look(queuePath(name));
export const head = (name) => look(`${queuePath(name)}/head`);
export const server = () => look("api/server");

/** The last hour of each of the queues, by name; one without a history is left out. */
export async function histories(names) {
  const answers = await Promise.all(queries(names).map((query) => look(`api/history?${query}`)));
  const series = Object.assign({}, ...answers.map((answer) => answer.series));
  return { ...answers.at(-1), series };
}

export const setStatus = (status) => change(`api/status/${status}`);
export const reload = () => change("api/reload");
export const shutDown = () => change("api/shutdown");
export const flush = (name) => change(`${queuePath(name)}/flush`);
export const flushExpired = (name) => change(`${queuePath(name)}/flush_expired`);
export const deleteQueue = (name) => change(`${queuePath(name)}/delete`);

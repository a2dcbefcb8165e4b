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

let token = null;

/** Send an administrator's token with each request from now on; null for none. */
export function useToken(given) {
  token = given;
}

export const hasToken = () => token !== null;

async function request(path, method, timeoutMs, body) {
  let response;
  try {
    const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
    response = await fetch(path, { method, body, headers, cache: "no-store", signal: AbortSignal.timeout(timeoutMs) });
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

function post(path, body) {
  return request(path, "POST", POST_TIMEOUT_MS, body);
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

/** `query` is "", "?queue=NAME" for the details of a queue too, or "?server" for those of the server. */
export const overview = (query) => get(`api/overview${query}`);
export const queueQuery = (name) => `?queue=${encodeName(name)}`;
export const serverHistory = () => get("api/history");
export const items = (name, first) => get(`${queuePath(name)}/items?first=${first}`);
export const connections = (first, queue) =>
  get(`api/connections?first=${first}${queue === null ? "" : `&queue=${encodeName(queue)}`}`);

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
export const put = (name, bytes, expiryMs) => post(`${queuePath(name)}/put?expiry_ms=${expiryMs}`, bytes);
export const move = (name, to, items) =>
  post(`${queuePath(name)}/move?to=${encodeName(to)}${items ? `&items=${items}` : ""}`);
export const stopMove = (name) => post(`${queuePath(name)}/stop_move`);
export const deleteQueue = (name) => post(`${queuePath(name)}/delete`);

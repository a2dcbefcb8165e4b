// The statuses of a server and their meanings, from the least to the most restrictive.

export const STATUSES = [
  { name: "Up", means: "all requests are accepted" },
  { name: "WriteAvoid", means: "all requests are accepted, but clients should write to other servers" },
  { name: "ReadOnly", means: "puts, flushes and deletes are refused" },
  { name: "Quiescent", means: "puts and gets are refused; open reads can be closed" },
  { name: "Down", means: "the server is shutting down" },
];

export function meaningOf(status) {
  return STATUSES.find(({ name }) => name === status)?.means ?? "";
}

/** Return the status as text, with the one still in force while a more restrictive one is announced. */
export function statusText({ status, in_force: inForce }) {
  return status === inForce ? status : `${status} announced; ${inForce} still in force`;
}

// The statuses of a server, from the loosest to the strictest, and what they mean.

export const STATUSES = [
  { name: "Up", means: "everything is served" },
  { name: "WriteAvoid", means: "everything is served, and clients should write elsewhere" },
  { name: "ReadOnly", means: "puts, flushes and deletes are refused" },
  { name: "Quiescent", means: "puts and gets are refused; open reads can be closed" },
  { name: "Down", means: "it is stopping" },
];

export function meaningOf(status) {
  return STATUSES.find(({ name }) => name === status)?.means ?? "";
}

/** The status in words, with the one that is still in force while a stricter one is announced. */
export function statusText({ status, in_force: inForce }) {
  return status === inForce ? status : `${status}, announced; ${inForce} still in force`;
}

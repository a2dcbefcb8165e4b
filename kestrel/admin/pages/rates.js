// How fast counters grow, per second, from samples of them that the server gives the time of.

const WINDOW_MS = 10_000;
const LONGEST_GAP_MS = 30_000;
const CLOCK_TOLERANCE_MS = 5_000;

/**
 * Rates of counters by key, over the last ten seconds or two samples.
 *
 * A counter that is new, or smaller than before, began at 0 since. A server that was started anew, or was not asked
 * for long, begins with no rate at all.
 */
export class Rates {
  #samples = [];

  /** Counters are a Map of a key to a list of numbers; times are milliseconds, the uptime never set back. */
  add(uptimeMs, timeMs, counters) {
    const last = this.#samples.at(-1);
    if (last) {
      const passed = uptimeMs - last.uptimeMs;
      if (passed === 0) return;
      const drift = Math.abs(timeMs - last.timeMs - passed);
      if (passed < 0 || passed > LONGEST_GAP_MS || drift > CLOCK_TOLERANCE_MS) {
        this.#samples = [];
      }
    }
    this.#samples.push({ uptimeMs, timeMs, counters });
    while (this.#samples.length > 2 && uptimeMs - this.#samples[0].uptimeMs > WINDOW_MS) {
      this.#samples.shift();
    }
  }

  /** The rate of each of the key's counters; null where it is not known. */
  of(key) {
    const samples = this.#samples;
    const newest = samples.at(-1)?.counters.get(key);
    if (!newest) return null;
    if (samples.length < 2) return newest.map(() => null);
    const seconds = (samples.at(-1).uptimeMs - samples[0].uptimeMs) / 1000;
    return newest.map((_, index) => {
      let grown = 0;
      for (let at = 1; at < samples.length; at += 1) {
        const before = samples[at - 1].counters.get(key)?.[index] ?? 0;
        const after = samples[at].counters.get(key)?.[index] ?? 0;
        grown += after >= before ? after - before : after;
      }
      return grown / seconds;
    });
  }
}

// Rates of counters per second, computed from samples.

const WINDOW_MS = 10_000;
const LONGEST_GAP_MS = 30_000;
const CLOCK_TOLERANCE_MS = 5_000;

/**
 * Rates of counters by key, over the last ten seconds or the last two samples.
 *
 * A counter that is new, or smaller than before, is taken to have started at 0. After a restart of the server, or a
 * long gap between samples, rates are unknown until the second sample.
 */
export class Rates {
  #samples = [];

  /**
   * Add a sample. `counters` maps each key to a list of numbers.
   *
   * `uptimeMs` is the server's monotonic uptime, `timeMs` its wall clock.
   */
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

  /** Return the rate of each counter of `key`, null for an unknown rate, or null if the key is unknown. */
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

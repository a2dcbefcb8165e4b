// Asking again and again: only while the page is seen, and less often while nobody answers.

const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 15_000;

/**
 * Run the task now, and again after `pauseMs()` has passed since it was done.
 *
 * A task that throws is tried again after a second, then two, four, up to fifteen. Returns what asks at once.
 */
export function poll(task, pauseMs) {
  let timer = null;
  let isRunning = false;
  let isWanted = false;
  let failures = 0;

  async function run() {
    clearTimeout(timer);
    if (isRunning) {
      isWanted = true;
      return;
    }
    isRunning = true;
    let pause;
    try {
      await task();
      failures = 0;
      pause = pauseMs();
    } catch {
      pause = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** failures);
      failures += 1;
    }
    isRunning = false;
    if (isWanted) {
      isWanted = false;
      run();
    } else if (!document.hidden) {
      timer = setTimeout(run, pause);
    }
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : run()));
  addEventListener("online", run);
  run();
  return run;
}

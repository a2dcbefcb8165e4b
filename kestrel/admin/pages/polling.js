// Polling: only while the page is visible, and less often while requests fail.

const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 15_000;

/**
 * Run the task now, and again `pauseMs()` milliseconds after each run.
 *
 * After an error the pause is one second, then two, four, up to fifteen. Return a function that runs the task at once.
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

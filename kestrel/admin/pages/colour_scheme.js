// The dark and the light look: what the system prefers, unless the reader chose.

const KEY = "kestrel-theme";
const root = document.documentElement;
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const listeners = [];
const probe = document.createElement("span");
probe.hidden = true;

let colours = new Map();

export function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : systemIsDark.matches;
}

/** A colour of the style sheet, such as "puts", as a canvas takes it. */
export function colour(name) {
  if (!colours.has(name)) {
    if (!probe.isConnected) {
      document.body.append(probe);
    }
    probe.style.color = `var(--${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}

/** Call back after each change of the look: what is on a canvas has to be drawn again. */
export function onLookChange(listener) {
  listeners.push(listener);
}

function changed(button) {
  colours = new Map();
  button.ariaPressed = String(isDark());
  listeners.forEach((listener) => listener());
}

function choose(theme) {
  const isSystems = (theme === "dark") === systemIsDark.matches;
  if (isSystems) {
    delete root.dataset.theme;
  } else {
    root.dataset.theme = theme;
  }
  try {
    if (isSystems) {
      localStorage.removeItem(KEY);
    } else {
      localStorage.setItem(KEY, theme);
    }
  } catch {
    // Then it holds until the page is loaded again.
  }
}

/** Make the button switch between dark and light. */
export function bindLook(button) {
  button.addEventListener("click", () => {
    choose(isDark() ? "light" : "dark");
    changed(button);
  });
  systemIsDark.addEventListener("change", () => changed(button));
  changed(button);
}

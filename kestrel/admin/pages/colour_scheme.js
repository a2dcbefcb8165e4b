// The dark and the light colour scheme: the system's preference, unless the user chose one.

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

/** Return a colour of the style sheet, such as "puts", in a form that a canvas accepts. */
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

/** Call `listener` after each change of the colour scheme, to redraw canvases. */
export function onColourSchemeChange(listener) {
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
    // Storage is not available, so the choice lasts until the page is reloaded.
  }
}

/** Make the button switch between dark and light mode. */
export function bindColourSchemeButton(button) {
  button.addEventListener("click", () => {
    choose(isDark() ? "light" : "dark");
    changed(button);
  });
  systemIsDark.addEventListener("change", () => changed(button));
  changed(button);
}

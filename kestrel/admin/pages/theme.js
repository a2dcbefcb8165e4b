// Applies the colour scheme that the user chose before. It runs before the first paint, so that the page does not flash.

try {
  const chosen = localStorage.getItem("kestrel-theme");
  if (chosen === "dark" || chosen === "light") {
    document.documentElement.dataset.theme = chosen;
  }
} catch {
  // Storage is not available to this page, so the system's preference applies.
}

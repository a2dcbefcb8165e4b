// Runs before anything is drawn, so that nothing flashes: what the reader chose before, if anything.

try {
  const chosen = localStorage.getItem("kestrel-theme");
  if (chosen === "dark" || chosen === "light") {
    document.documentElement.dataset.theme = chosen;
  }
} catch {
  // Storage is refused to this page: what the system prefers will do.
}

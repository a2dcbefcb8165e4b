"""How fast, how small, how smooth: docs/performance.md says what is measured and what came out."""

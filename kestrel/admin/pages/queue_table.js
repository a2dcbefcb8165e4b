// The table of queues: sorted, filtered, and with only the visible rows in the document.

import { onColourSchemeChange } from "./colour_scheme.js";
import { byId, element, nameElement, setText } from "./dom.js";
import * as format from "./format.js";
import { queueAddress } from "./queue_names.js";
import { drawSparkline } from "./sparkline.js";

const ROWS_BEYOND = 6;
const LEAST_SAMPLES = 60;

/** The columns. A click sorts numbers in descending order first. Columns with `adds` have a sum in the footer. */
const COLUMNS = [
  { key: "name", label: "Queue", isName: true },
  { key: "spark", label: "Last hour", title: "Items over the last hour" },
  { key: "items", label: "Items", format: format.briefCount, adds: true, title: "Items in the queue" },
  { key: "bytes", label: "Bytes", format: format.bytes, adds: true, title: "Bytes in the queue" },
  { key: "puts", label: "Puts/s", format: format.rate, adds: true, title: "Items put per second" },
  { key: "gets", label: "Gets/s", format: format.rate, adds: true, title: "Items taken per second" },
  { key: "oldest_age_msec", label: "Oldest", format: format.duration, title: "Age of the oldest item" },
  { key: "age_msec", label: "Last wait", format: format.duration, title: "How long the last item taken had waited" },
  { key: "waiters", label: "Waiters", format: format.briefCount, adds: true, title: "Clients that wait for an item" },
  { key: "open_transactions", label: "Open", format: format.briefCount, adds: true, title: "Open reads" },
  { key: "journal_bytes", label: "Journal", format: format.bytes, adds: true, title: "Bytes of the journal" },
  { key: "mem_bytes", label: "Memory", format: format.bytes, adds: true, title: "Bytes of items in memory" },
  { key: "expired_items", label: "Expired", format: format.briefCount, adds: true, title: "Items expired" },
  { key: "discarded", label: "Discarded", format: format.briefCount, adds: true, title: "Items discarded because the queue was full" },
];
const SPARK = COLUMNS.findIndex(({ key }) => key === "spark");

const names = new Intl.Collator("en", { numeric: true });

function compare(one, other, { key, isName }, isDescending) {
  if (isName) {
    const order = names.compare(one.name, other.name);
    return isDescending ? -order : order;
  }
  if (one[key] === other[key]) return names.compare(one.name, other.name);
  if (one[key] === null) return 1;
  if (other[key] === null) return -1;
  return isDescending ? other[key] - one[key] : one[key] - other[key];
}

/**
 * Build the table and return the functions that update it.
 *
 * `onSeen(names)` is called when the set of visible queues changes, `open(name)` when the user opens a queue.
 */
export function makeTable({ onSeen, open }) {
  const scroller = byId("queues-scroll");
  const filter = byId("filter");
  const top = element("tr");
  const totals = element("tr");
  const above = element("td");
  const below = element("td");
  const spacers = [above, below].map((cell) => element("tr", { className: "spacer", ariaHidden: "true" }, cell));
  const body = element("tbody", {}, ...spacers);
  const table = element(
    "table",
    { className: "queues" },
    element("caption", { className: "unseen", textContent: "Queues" }),
    element("colgroup", {}, ...COLUMNS.map(({ key }) => element("col", { className: `column-${key}` }))),
    element("thead", {}, top),
    body,
    element("tfoot", {}, totals),
  );
  scroller.append(table);

  let all = [];
  let shown = [];
  let sort = { column: COLUMNS[0], isDescending: false };
  let activeName = null;
  let rowHeight = 38;
  let seen = "";
  let isActive = false;
  const rows = new Map();
  const spare = [];
  const sparks = new Map();
  let sparkSamples = LEAST_SAMPLES;

  for (const column of COLUMNS) {
    const head = element("th", { scope: "col", title: column.title ?? "" });
    if (column.key === "spark") {
      head.append(column.label);
    } else {
      const arrow = element("span", { className: "arrow", ariaHidden: "true" });
      const button = element("button", { type: "button" }, column.label, arrow);
      button.addEventListener("click", () => sortBy(column));
      head.append(button);
    }
    head.className = `cell-${column.key}`;
    top.append(head);
    totals.append(element(column.isName ? "th" : "td", { className: `cell-${column.key}` }));
  }
  totals.cells[0].scope = "row";

  function sortBy(column) {
    const isDescending = sort.column === column ? !sort.isDescending : !column.isName;
    sort = { column, isDescending };
    scroller.scrollTop = 0;
    arrange();
  }

  function showSort() {
    COLUMNS.forEach((column, index) => {
      const isSorted = column === sort.column;
      top.cells[index].ariaSort = isSorted ? (sort.isDescending ? "descending" : "ascending") : null;
      const arrow = top.cells[index].querySelector(".arrow");
      if (arrow) setText(arrow, isSorted ? (sort.isDescending ? "↓" : "↑") : "");
    });
  }

  function makeRow() {
    const link = element("a", { tabIndex: -1 }, nameElement(""));
    const row = element("tr");
    for (const { key, isName } of COLUMNS) {
      const cell = element(isName ? "th" : "td", { className: `cell-${key}` });
      if (isName) {
        cell.scope = "row";
        cell.append(link);
      } else if (key === "spark") {
        cell.append(element("canvas", { ariaHidden: "true" }));
      }
      row.append(cell);
    }
    link.addEventListener("focus", () => activate(row.dataset.name));
    return row;
  }

  /** Return a row for a queue, reusing a removed row if there is one, since canvases are expensive. */
  function rowFor({ name }) {
    const row = spare.pop() ?? makeRow();
    const link = row.firstElementChild.firstElementChild;
    row.dataset.name = name;
    link.href = queueAddress(name);
    link.title = name;
    setText(link.firstElementChild, name);
    return row;
  }

  function fillRow(row, queue, index) {
    row.ariaRowIndex = String(index + 2);
    COLUMNS.forEach(({ key, format: formatted }, number) => {
      if (!formatted) return;
      setText(row.cells[number], formatted(queue[key]));
      row.cells[number].classList.toggle("zero", !queue[key]);
    });
    row.firstElementChild.firstElementChild.tabIndex = queue.name === activeName ? 0 : -1;
  }

  function drawSpark(name, row) {
    drawSparkline(row.cells[SPARK].firstElementChild, sparks.get(name), sparkSamples);
  }

  function activate(name) {
    activeName = name;
    for (const [each, row] of rows) {
      row.firstElementChild.firstElementChild.tabIndex = each === name ? 0 : -1;
    }
  }

  /** Add and remove rows so that the document has the visible ones. */
  function render() {
    const { scrollTop, clientHeight } = scroller;
    const first = Math.max(0, Math.floor(scrollTop / rowHeight) - ROWS_BEYOND);
    const end = Math.min(shown.length, Math.ceil((scrollTop + clientHeight) / rowHeight) + ROWS_BEYOND);
    const wanted = shown.slice(first, end);
    const wantedNames = new Set(wanted.map(({ name }) => name));
    const focused = rows.get(activeName)?.contains(document.activeElement) ? activeName : null;

    for (const [name, row] of rows) {
      if (!wantedNames.has(name)) {
        row.remove();
        rows.delete(name);
        spare.push(row);
      }
    }
    let next = spacers[0].nextElementSibling;
    const added = [];
    wanted.forEach((queue, offset) => {
      let row = rows.get(queue.name);
      if (!row) {
        row = rowFor(queue);
        rows.set(queue.name, row);
        added.push(queue.name);
      }
      fillRow(row, queue, first + offset);
      if (row === next) {
        next = row.nextElementSibling;
      } else {
        body.insertBefore(row, next);
      }
    });
    above.style.height = `${first * rowHeight}px`;
    below.style.height = `${(shown.length - end) * rowHeight}px`;

    // Drawn after all rows are in place: each call reads the size of its canvas, which forces a layout of the table.
    added.forEach((name) => drawSpark(name, rows.get(name)));

    if (focused !== null && !rows.get(focused)?.contains(document.activeElement)) {
      const row = rows.get(focused);
      (row ? row.firstElementChild.firstElementChild : scroller).focus({ preventScroll: true });
    }
    const height = wanted.length ? rows.get(wanted[0].name).getBoundingClientRect().height : 0;
    if (height > 10 && Math.abs(height - rowHeight) > 0.1) {
      rowHeight = height;
      render();
      return;
    }
    const seenNow = [...wantedNames].sort().join(" ");
    if (isActive && seenNow !== seen) {
      seen = seenNow;
      onSeen([...wantedNames]);
    }
  }

  function showTotals() {
    const words = shown.length === all.length ? "" : `${format.count(shown.length)} of `;
    setText(byId("queues-count"), `${words}${format.plural(all.length, "queue")}`);
    COLUMNS.forEach(({ key, isName, adds, format: formatted }, index) => {
      if (isName) {
        setText(totals.cells[index], shown.length === all.length ? "All queues" : "These queues");
      } else if (adds) {
        const values = shown.map((queue) => queue[key]).filter((value) => value !== null);
        const isKnown = values.length > 0 || shown.length === 0;
        const sum = values.reduce((before, value) => before + value, 0);
        setText(totals.cells[index], formatted(isKnown ? sum : null));
      }
    });
  }

  /** Filter and sort the queues, then show them. */
  function arrange() {
    const wanted = filter.value.trim().toLowerCase();
    shown = wanted ? all.filter(({ name }) => name.toLowerCase().includes(wanted)) : [...all];
    shown.sort((one, other) => compare(one, other, sort.column, sort.isDescending));
    if (!shown.some(({ name }) => name === activeName)) {
      activeName = shown[0]?.name ?? null;
    }
    table.ariaRowCount = String(shown.length + 2);
    showSort();
    showTotals();
    const isEmpty = all.length === 0;
    byId("no-queues").hidden = !isEmpty;
    byId("queues-tools").hidden = isEmpty;
    byId("no-match").hidden = isEmpty || shown.length > 0;
    setText(byId("no-match-text"), filter.value.trim());
    scroller.hidden = shown.length === 0;
    render();
  }

  function moveTo(index) {
    if (!shown.length) return;
    const at = Math.max(0, Math.min(shown.length - 1, index));
    const visible = scroller.clientHeight - table.tHead.offsetHeight - table.tFoot.offsetHeight;
    const start = at * rowHeight;
    if (start < scroller.scrollTop) {
      scroller.scrollTop = start;
    } else if (start + rowHeight > scroller.scrollTop + visible) {
      scroller.scrollTop = start + rowHeight - visible;
    }
    activeName = shown[at].name;
    render();
    rows.get(activeName).firstElementChild.firstElementChild.focus({ preventScroll: true });
  }

  function onKey(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    const page = Math.max(1, Math.floor(scroller.clientHeight / rowHeight) - 3);
    const at = shown.findIndex(({ name }) => name === activeName);
    const isOnRow = body.contains(event.target);
    const steps = {
      ArrowDown: isOnRow ? at + 1 : at,
      ArrowUp: at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: shown.length - 1,
    };
    if (event.key in steps) {
      event.preventDefault();
      moveTo(steps[event.key]);
    } else if (event.key === "Enter" && event.target === scroller && activeName !== null) {
      open(activeName);
    }
  }

  function onClick(event) {
    const row = event.target.closest("tr[data-name]");
    if (!row || event.target.closest("a") || !getSelection().isCollapsed) return;
    open(row.dataset.name);
  }

  let isRenderDue = false;
  scroller.addEventListener("scroll", () => {
    if (isRenderDue) return;
    isRenderDue = true;
    requestAnimationFrame(() => {
      isRenderDue = false;
      render();
    });
  });
  scroller.addEventListener("keydown", onKey);
  body.addEventListener("click", onClick);
  filter.addEventListener("input", () => {
    scroller.scrollTop = 0;
    arrange();
  });
  filter.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && shown.length) {
      event.preventDefault();
      moveTo(0);
    } else if (event.key === "Escape") {
      filter.value = "";
      arrange();
    }
  });
  new ResizeObserver(() => isActive && render()).observe(scroller);
  onColourSchemeChange(() => rows.forEach((row, name) => drawSpark(name, row)));

  return {
    /** Show `queues`. */
    update(queues) {
      all = queues;
      arrange();
    },

    /** Set whether the table is visible; while it is not, `onSeen` is not called. */
    setActive(isIt) {
      isActive = isIt;
      if (isActive) {
        seen = "";
        render();
      }
    },

    /** Restore the focus to the queue that was opened last. */
    focus() {
      const at = shown.findIndex(({ name }) => name === activeName);
      if (at >= 0) moveTo(at);
    },

    /** Make a queue the one that the Tab key reaches. */
    activate,

    /** Return the names of the queues that have rows in the document. */
    seenNames: () => [...rows.keys()],

    /** Draw the sparklines from histories by name. */
    updateSparks(series) {
      for (const name of sparks.keys()) {
        if (!rows.has(name)) sparks.delete(name);
      }
      for (const name of rows.keys()) {
        sparks.set(name, series[name]?.items ?? sparks.get(name) ?? []);
      }
      // All sparklines have the same time scale: one hour, or the uptime of the server if it is shorter.
      sparkSamples = Math.max(LEAST_SAMPLES, ...[...sparks.values()].map((items) => items.length));
      rows.forEach((row, name) => drawSpark(name, row));
    },
  };
}

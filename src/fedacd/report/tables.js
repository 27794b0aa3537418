// Tables whose headings sort. Where one is too wide, what its rows are about goes beneath the name: numbers stay in view.

const orders = {};
const tables = {};

// columns: {title, number: sorts and aligns as one, value(row), cell(row): text or nodes, best: 1 or -1,
// enters(row): may be the best, fold(row): what is said beneath the name where there is no room for the column,
// fields: {title: value(row)} in a file, where it is not `value` alone}
function table(id, label, columns, rows) {
  if (rows.length === 0) {
    delete tables[id];
    at(id).replaceChildren(absent("Nothing to show for these filters."));
    return;
  }
  tables[id] = () => table(id, label, columns, rows);
  const order = orders[id] || (orders[id] = { title: null, down: false });
  const by = columns.find((column) => column.title === order.title);
  const sorted = by ? [...rows].sort((a, b) => compareBy(by, order.down, a, b)) : rows;
  const left = at(id).querySelector(".sheet")?.scrollLeft ?? 0;
  const put = (fold) => {
    const shown = fold ? columns.filter((column) => !column.fold) : columns;
    const beneath = (row) => columns.map((column) => fold && column.fold?.(row)).filter(Boolean);
    const body = sorted.map((row) => make("tr", {}, ...shown.map((column, i) => tableCell(column, row, rows, i === 0, beneath(row)))));
    const sheet = make("div", { class: "sheet", tabindex: "0", role: "region", "aria-label": label },
      make("table", {}, make("thead", {}, make("tr", {}, ...shown.map((column) => heading(id, column, order)))), make("tbody", {}, ...body)));
    const button = saveButton("CSV", label, () => download(`${fileName(label)}.csv`, asCsv(columns, sorted)));
    at(id).replaceChildren(make("div", { class: "above" }, button), sheet);
    sheet.scrollLeft = left;
    return sheet.scrollWidth <= sheet.clientWidth;
  };
  if (!put(false) && columns.some((column) => column.fold)) put(true);
}

// All that the rows shown have, with all digits, for a spreadsheet.
function asCsv(columns, rows) {
  const fields = columns.flatMap((column) => Object.entries(column.fields ?? { [column.title]: column.value }));
  const quoted = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const lines = [fields.map(([title]) => title), ...rows.map((row) => fields.map(([, value]) => String(value(row) ?? "")))];
  return lines.map((line) => `${line.map(quoted).join(",")}\n`).join("");
}

function download(name, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

function heading(id, column, order) {
  const button = make("button", { type: "button" }, column.title);
  const mine = order.title === column.title;
  button.addEventListener("click", () => {
    order.down = mine ? !order.down : Boolean(column.number);
    order.title = column.title;
    tables[id]();
    at(id).querySelector("th:not([aria-sort=none]) button").focus();
  });
  const sort = mine ? (order.down ? "descending" : "ascending") : "none";
  return make("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": sort }, button);
}

function tableCell(column, row, rows, first, beneath) {
  const content = column.cell ? column.cell(row) : String(column.value(row) ?? "–");
  const parts = Array.isArray(content) ? content : [content];
  if (first) return make("th", { scope: "row" }, ...parts, beneath.length ? underneath(beneath) : null);
  const classes = [];
  const value = column.value(row);
  if (column.number) classes.push("number");
  if (value === null || value === undefined) classes.push("none");
  else if (column.best && isBest(column, row, rows)) classes.push("best");
  return make("td", { class: classes.join(" ") || null }, ...parts);
}

// Short parts stay whole, and more than a few words get room for them.
function underneath(texts) {
  const parts = texts.map((text) => make("span", { class: text.length <= 18 ? "whole" : null }, text));
  return make("small", { class: texts.join(", ").length > 16 ? "fold long" : "fold" }, ...parts.flatMap((part, i) => (i ? [", ", part] : [part])));
}

// The best of those of its problem that may be; of one alone nothing is said.
function isBest(column, row, rows) {
  const rivals = rows.filter((other) => other.problem === row.problem && (column.value(other) ?? null) !== null);
  const enters = column.enters ?? (() => true);
  const better = (other) => enters(other) && column.best * column.value(other) > column.best * column.value(row);
  return rivals.length > 1 && enters(row) && !rivals.some(better);
}

// What is absent comes last, up or down.
function compareBy(column, down, a, b) {
  const [x, y] = [column.value(a), column.value(b)];
  if (x === null || x === undefined || y === null || y === undefined) return (x === null || x === undefined) - (y === null || y === undefined);
  const way = column.number ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
  return down ? -way : way;
}

// Columns only for what differs: data set, skew, setting.
const problemColumns = () =>
  Object.entries(FILTERS)
    .filter(([, filter]) => new Set(data.problems.map(filter.of)).size > 1)
    .map(([key, { title, of }]) => ({ title, value: (row) => of(data.problems[row.problem]), fold: (row) => data.problems[row.problem][key] }));

const seedsColumn = (value) => ({ title: "Seeds", number: true, value, fold: (row) => (value(row) === 1 ? "one\u00a0seed" : `${value(row)}\u00a0seeds`) });

const methodColumn = { title: "Method", value: (row) => data.methods[row.method] };

function spreadColumn(title, key, digits, best) {
  return {
    title, number: true, best,
    value: (group) => group.row[key]?.mean ?? null,
    fields: { [title]: (group) => group.row[key]?.mean, [`${title} sd`]: (group) => group.row[key]?.sd },
    cell: (group) => {
      const found = group.row[key];
      if (!found) return "–";
      const spread = found.sd === null ? " n = 1" : ` ± ${fixed(found.sd, digits)}`;
      return [fixed(found.mean, digits), make("span", { class: "sd" }, spread)];
    },
  };
}

function drawTable() {
  const rows = data.groups.filter(shows);
  const numbers = [
    spreadColumn("Accuracy %", "accuracy", 2, 1),
    spreadColumn("Last %", "last", 2, 1),
    spreadColumn("Best %", "best", 2, 1),
    spreadColumn("Client %", "accuracy_client", 2, 1),
    spreadColumn("Risk", "risk", 3, -1),
    spreadColumn("KL own", "kl_local", 3),
    spreadColumn("KL test", "kl_test", 3),
    spreadColumn("s / round", "seconds", 2),
    spreadColumn("MB / round", "megabytes", 2),
  ];
  const columns = [
    { ...methodColumn, cell: (group) => [data.methods[group.method], ...group.unfinished.map((text) => make("small", { class: "mark" }, text))] },
    ...problemColumns(),
    seedsColumn((group) => group.counted),
    ...numbers.filter((column, i) => i === 0 || rows.some((row) => column.value(row) !== null)),
  ];
  table("table-all", "All numbers", columns, rows);
}

// With as many digits as it takes to see on which side of 0.05 it lies.
function pValue(p) {
  if (p === null) return "–";
  let digits = 3;
  while (p < 0.05 && Number(p.toFixed(digits)) >= 0.05) digits += 1;
  return p < 0.001 ? "<0.001" : p.toFixed(digits);
}

const badge = (verdict) => make("span", { class: `badge ${verdict === "one seed" ? "" : verdict}` }, verdict);

// The pairs that the select box asks for, each as the first method minus the base.
function differences() {
  const base = at("difference-base").value;
  const open = data.pairs.filter((pair) => showsProblem(pair.problem) && showsMethod(pair.a) && showsMethod(pair.b));
  if (base === "all") return open.map((pair) => ({ ...pair, method: pair.a }));
  const number = Number(base);
  return open.filter((pair) => pair.a === number || pair.b === number).map((pair) => {
    if (pair.b === number) return { ...pair, method: pair.a };
    const turn = (v) => (v === null ? null : -v);
    return { ...pair, a: pair.b, b: pair.a, method: pair.b, mean: -pair.mean, low: turn(pair.high), high: turn(pair.low) };
  });
}

function drawDifferences() {
  const signed = (v) => (v === null ? "–" : (v > 0 ? "+" : "") + fixed(v, 2));
  const columns = [
    methodColumn,
    { title: "minus", value: (row) => data.methods[row.b], fold: (row) => `minus ${data.methods[row.b]}` },
    ...problemColumns(),
    seedsColumn((row) => row.n),
    { title: "Difference", number: true, value: (row) => row.mean, cell: (row) => signed(row.mean) },
    { title: "Verdict", value: (row) => row.verdict, cell: (row) => [badge(row.verdict)] },
    { title: "95 % interval", number: true, value: (row) => row.low, fields: { "95 % from": (row) => row.low, "95 % to": (row) => row.high }, cell: (row) => (row.low === null ? "–" : `${signed(row.low)} to ${signed(row.high)}`) },
    { title: "p", number: true, value: (row) => row.p, cell: (row) => pValue(row.p) },
    { title: "p, Holm", number: true, value: (row) => row.holm, cell: (row) => pValue(row.holm) },
    ...(data.pairs.some((pair) => pair.end) ? [{ title: "To round", number: true, value: (row) => row.end, cell: (row) => String(row.end ?? "the end") }] : []),
  ];
  table("table-differences", "Differences", columns, differences());
}

const mean = (values) => {
  const known = values.filter((v) => v !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
};

// The target in percent: as chosen, or a share of the best accuracy that is reached on the problem.
function target(problem) {
  const [kind, number] = at("cost-target").value.split(":");
  if (kind === "at") return Number(number);
  const best = Math.max(...data.groups.filter((g) => g.problem === problem).map((g) => g.row.best?.mean ?? 0));
  return (best * Number(number)) / 100;
}

function drawCost() {
  const rows = data.groups.filter(shows).map((group) => {
    const aim = target(group.problem);
    const hits = group.records.map((steps) => steps.find((step) => step[3] >= aim)).filter(Boolean);
    const of = (i) => mean(hits.map((step) => step[i]));
    return { ...group, aim, hits: hits.length, rounds: of(0), seconds: of(1), megabytes: of(2) };
  });
  // Of a run that was not measured every round it is known by when the target was reached, not when.
  const mixed = (row) => new Set(rows.filter((other) => other.problem === row.problem && other.hits).map((other) => other.coarse)).size > 1;
  const enters = (row) => row.hits === row.seeds.length && !mixed(row);
  const number = (title, key, digits) => ({
    title, number: true, best: -1, enters, value: (row) => row[key],
    cell: (row) => (row.coarse && row[key] !== null ? "≤ " : "") + fixed(row[key], digits),
  });
  const columns = [
    methodColumn,
    ...problemColumns(),
    { title: "Target %", number: true, value: (row) => row.aim, cell: (row) => fixed(row.aim, 1), fold: (row) => `target ${fixed(row.aim, 1)}\u00a0%` },
    { title: "Reached by", number: true, value: (row) => row.hits / row.seeds.length, cell: (row) => `${row.hits} of ${row.seeds.length}` },
    number("Rounds", "rounds", 1),
    number("Seconds", "seconds", 1),
    number("Megabytes", "megabytes", 1),
  ];
  table("table-cost", "Cost of an accuracy", columns, rows);
}

function drawRuns() {
  const columns = [
    methodColumn,
    ...problemColumns(),
    { title: "Seed", number: true, value: (run) => run.seed, fold: (run) => `seed ${run.seed}` },
    { title: "Rounds", value: (run) => run.state, cell: (run) => (run.state.startsWith("unfinished") ? [make("span", { class: "mark" }, run.state)] : run.state) },
    { title: "Device", value: (run) => run.device },
    { title: "Precision", value: (run) => run.precision },
    { title: "torch", value: (run) => run.torch || null },
    { title: "Commit", value: (run) => run.commit || null },
    { title: "Started", value: (run) => run.started || null },
    { title: "Name", value: (run) => run.name },
  ];
  table("table-runs", "Runs", columns, data.runs.filter(shows));
}

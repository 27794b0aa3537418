// Tables whose headings sort.

const orders = {};

// columns: {title, number: sorts and aligns as one, value(row), cell(row): text or nodes, best: 1 or -1}
function table(id, label, columns, rows) {
  if (rows.length === 0) {
    at(id).replaceChildren(absent("Nothing to show for these filters."));
    return;
  }
  const order = orders[id] || (orders[id] = { column: null, down: false });
  const sorted = order.column === null ? rows : [...rows].sort((a, b) => compareBy(columns[order.column], order.down, a, b));
  const heads = columns.map((column, i) => {
    const button = make("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      order.down = order.column === i ? !order.down : Boolean(column.number);
      order.column = i;
      table(id, label, columns, rows);
      at(id).querySelectorAll("thead button")[i].focus();
    });
    const sort = order.column === i ? (order.down ? "descending" : "ascending") : "none";
    return make("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": sort }, button);
  });
  const body = sorted.map((row) => make("tr", {}, ...columns.map((column, i) => tableCell(column, row, rows, i))));
  const sheet = make("div", { class: "sheet", tabindex: "0", role: "region", "aria-label": label },
    make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body)));
  const left = at(id).querySelector(".sheet")?.scrollLeft ?? 0;
  at(id).replaceChildren(sheet);
  sheet.scrollLeft = left;
}

function tableCell(column, row, rows, i) {
  const content = column.cell ? column.cell(row) : String(column.value(row) ?? "–");
  const parts = Array.isArray(content) ? content : [content];
  if (i === 0) return make("th", { scope: "row" }, ...parts);
  const classes = [];
  const value = column.value(row);
  if (column.number) classes.push("number");
  if (value === null || value === undefined) classes.push("none");
  else if (column.best && isBest(column, row, rows)) classes.push("best");
  return make("td", { class: classes.join(" ") || null }, ...parts);
}

function isBest(column, row, rows) {
  const rivals = rows.filter((other) => other.problem === row.problem).map(column.value).filter((v) => v !== null && v !== undefined);
  return rivals.length > 1 && rivals.every((v) => column.best * v <= column.best * column.value(row));
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
  Object.values(FILTERS)
    .filter((filter) => new Set(data.problems.map(filter.of)).size > 1)
    .map((filter) => ({ title: filter.title, value: (row) => filter.of(data.problems[row.problem]) }));

const methodColumn = { title: "Method", value: (row) => data.methods[row.method] };

function spreadColumn(title, key, digits, best) {
  return {
    title, number: true, best,
    value: (group) => group.row[key]?.mean ?? null,
    cell: (group) => {
      const found = group.row[key];
      if (!found) return "–";
      const spread = found.sd === null ? "" : ` ± ${fixed(found.sd, digits)}`;
      return [fixed(found.mean, digits), make("span", { class: "sd" }, spread)];
    },
  };
}

function drawTable() {
  const columns = [
    { ...methodColumn, cell: (group) => [data.methods[group.method], ...group.unfinished.map((text) => make("small", { class: "mark" }, text))] },
    ...problemColumns(),
    { title: "Seeds", number: true, value: (group) => group.counted },
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
  table("table-all", "All numbers", columns, data.groups.filter(shows));
}

const pValue = (p) => (p === null ? "–" : p < 0.001 ? "<0.001" : p.toFixed(3));
const badge = (verdict) => make("span", { class: `badge ${verdict === "one seed" ? "" : verdict}` }, verdict);

// The pairs that the select box asks for, each as the first method less the base.
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
    { title: "less", value: (row) => data.methods[row.b] },
    ...problemColumns(),
    { title: "Seeds", number: true, value: (row) => row.n },
    { title: "Difference", number: true, value: (row) => row.mean, cell: (row) => signed(row.mean) },
    { title: "95 % interval", number: true, value: (row) => row.low, cell: (row) => (row.low === null ? "–" : `${signed(row.low)} to ${signed(row.high)}`) },
    { title: "p", number: true, value: (row) => row.p, cell: (row) => pValue(row.p) },
    { title: "p, Holm", number: true, value: (row) => row.holm, cell: (row) => pValue(row.holm) },
    { title: "Verdict", value: (row) => row.verdict, cell: (row) => [badge(row.verdict)] },
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
  const number = (title, key, digits) => ({ title, number: true, best: -1, value: (row) => row[key], cell: (row) => fixed(row[key], digits) });
  const columns = [
    methodColumn,
    ...problemColumns(),
    { title: "Target %", number: true, value: (row) => row.aim, cell: (row) => fixed(row.aim, 1) },
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
    { title: "Seed", number: true, value: (run) => run.seed },
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

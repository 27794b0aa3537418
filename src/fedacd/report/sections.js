// The rest of the sections, and what happens when a filter or a control changes.

const pairOf = (problem, two) => data.pairs.find((p) => p.problem === problem && two.includes(p.a) && two.includes(p.b));

// A number stays on the line of its unit.
const unbroken = (words) => words.replace(/ = /g, "\u00a0=\u00a0").replace(/(\d) (points?|seeds?|rounds|%)/g, "$1\u00a0$2");

const surely = (pair) => pair && ["sure", "likely"].includes(pair.verdict);

function accuracyText(group) {
  const { mean, sd, n } = group.row.accuracy;
  return unbroken(`${fixed(mean, 1)}${sd === null ? "" : ` ± ${fixed(sd, 1)}`} % (${n === 1 ? "one seed" : `${n} seeds`})`);
}

// The method in large type is one that is better; where nothing is sure, none is.
function drawHeadlines() {
  const cards = shownProblems().map((problem) => {
    const groups = new Map(groupsOf(problem).map((g) => [g.method, g]));
    const ranked = data.rankings[problem].filter((method) => groups.has(method));
    const card = make("article", { class: "card" }, make("h3", {}, data.problems[problem].title));
    const numbers = (method) => [data.methods[method], " ", make("small", {}, accuracyText(groups.get(method)))];
    const say = (pair, kind) => card.append(make("p", { class: kind }, unbroken(pair.short), " ", badge(pair.verdict)));
    const pair = ranked.length > 1 ? pairOf(problem, ranked.slice(0, 2)) : null;
    if (ranked.length === 0) card.append(make("p", {}, "No accuracy is recorded."));
    if (ranked.length === 1) card.append(make("p", { class: "big" }, ...numbers(ranked[0])), make("p", {}, "No other method to compare with."));
    if (surely(pair)) card.append(make("p", { class: "big" }, ...numbers(pair.mean > 0 ? pair.a : pair.b)));
    else if (ranked.length > 1) {
      card.append(make("p", { class: "big" }, "No clear winner"));
      for (const method of ranked.slice(0, 2)) card.append(make("p", { class: "rival" }, ...numbers(method)));
    }
    if (pair) say(pair, null);
    else if (ranked.length > 1) card.append(make("p", {}, "No seed in common: they cannot be compared in pairs."));
    const named = ["FedACD", "FedAvg"].map((name) => data.methods.indexOf(name));
    const usual = named.every((method) => ranked.includes(method)) && pairOf(problem, named);
    if (usual && !named.every((method) => ranked.slice(0, 2).includes(method))) say(usual, "more");
    return card;
  });
  at("headlines").replaceChildren(...cards);
}

function fillBase() {
  const methods = data.methods.map((name, i) => [i, name]).filter(([i]) => showsMethod(i) && data.pairs.some((p) => showsProblem(p.problem) && (p.a === i || p.b === i)));
  const usual = methods.find(([, name]) => name === "FedAvg") || methods[0];
  fill(at("difference-base"), methods.length ? [...methods, ["all", "every pair"]] : [], usual?.[0]);
}

const WORDS = {
  risk: "Test error of the participants’ local models on every client’s label mix: how badly a local model serves the other clients. Lower is better.",
  accuracy_client: "Accuracy of the global model on the clients’ own label mixes, mean over clients. Higher is better.",
  kl_local: "How far the local models’ outputs P are from the template Q, on the data they were trained on.",
  kl_test: "How far the local models’ outputs P are from the template Q, on the test set.",
  train_loss: "Mean cross entropy of the participants’ training batches.",
};

function drawRisk() {
  const metric = at("risk-metric").value;
  at("risk-words").textContent = WORDS[metric];
  drawCurves("risk-plots", metric, "round", at("risk-smooth").checked);
}

// Not Math.min(...values): a call takes some 100,000 arguments at most.
const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const greatest = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

const seedText = (entry) => `seed ${entry.seed}`;

function fillPartition() {
  const options = data.partitions.map((p, i) => [i, `${data.problems[p.problem].title}, ${seedText(p)}`]);
  fill(at("partition-pick"), options.filter(([i]) => shows(data.partitions[i])));
}

function drawPartition() {
  clear("partition-plots");
  const pick = at("partition-pick").value;
  if (pick === "") {
    at("partition-plots").append(absent("Class counts are not recorded in these runs."));
    return;
  }
  const found = data.partitions[pick];
  const { counts, problem } = found;
  const order = counts[0].map((_, i) => i);
  const most = greatest(counts.flat());
  const ticks = [1, 0.5, 0.1].map((share) => Math.round(most * share)).filter((v) => v > 0);
  const rows = Math.min(counts.length, 60);
  const labelled = order.length <= 12 && counts.length <= 60;
  const seen = counts.map((row) => row.filter((n) => n > 0).length);
  const words = `${counts.length} clients hold ${least(seen)} to ${greatest(seen)} of ${order.length} classes`;
  figure("partition-plots", [data.problems[problem].title, make("small", {}, `, ${seedText(found)}: ${words}`)], words, 90 + rows * (narrow.matches ? 16 : 20), () => [{
    type: "heatmap", z: counts.map((row) => row.map((n) => (n ? Math.sqrt(n) : null))), zmin: 0, zmax: Math.sqrt(most), colorscale: "Cividis",
    xgap: order.length > 30 ? 0 : 1, ygap: counts.length > 60 ? 0 : 1, text: counts.map((row) => row.map((n) => (n ? String(n) : ""))),
    texttemplate: labelled ? "%{text}" : "", customdata: counts.map(() => order.map((i) => plain(className(problem, i)))),
    hovertemplate: "client %{y}<br>class %{customdata}: %{text} samples<extra></extra>", hoverongaps: false,
    colorbar: { thickness: 10, outlinewidth: 0, tickvals: ticks.map(Math.sqrt), ticktext: ticks.map(String) },
  }], () => ({
    xaxis: classAxis(problem, order),
    yaxis: { title: { text: "client", standoff: 6 }, autorange: "reversed", showgrid: false, zeroline: false, dtick: counts.length <= 30 ? (narrow.matches ? 2 : 1) : null },
  }));
}

// The same client under every method.
const matrixKey = (entry) => [entry.problem, entry.seed, entry.client].join(":");

function fillMatrices() {
  const keys = new Map();
  for (const entry of data.matrices.filter(shows)) {
    keys.set(matrixKey(entry), [matrixKey(entry), `${data.problems[entry.problem].title}, client ${entry.client}, ${seedText(entry)}`]);
  }
  fill(at("matrix-pick"), [...keys.values()]);
}

function unpack(text, classes) {
  const bytes = atob(text);
  const row = (i) => Array.from({ length: classes }, (_, j) => bytes.charCodeAt(i * classes + j) / 255);
  return Array.from({ length: classes }, (_, i) => row(i)).map((line) => (line.some((v) => v > 0) ? line : line.map(() => null)));
}

function template(classes) {
  const rest = Math.sqrt(1e-5 / Math.max(1, classes - 1));
  return Array.from({ length: classes }, (_, i) => Array.from({ length: classes }, (_, j) => (i === j ? 1 : rest)));
}

function drawMatrices() {
  clear("matrix-plots");
  const kind = at("matrix-kind").value;
  const entries = data.matrices.filter((e) => shows(e) && matrixKey(e) === at("matrix-pick").value && e[kind]);
  at("matrix-scale").hidden = entries.length === 0;
  if (entries.length === 0) {
    at("matrix-plots").append(absent("Probability matrices are not recorded in these runs."));
    return;
  }
  const problem = entries[0].problem;
  const classes = data.problems[problem].classes;
  const names = Array.from({ length: classes }, (_, i) => plain(className(problem, i)));
  const axis = () => ({ showgrid: false, zeroline: false, automargin: false, nticks: 6, ...(classes <= 12 ? { dtick: 1 } : {}), constrain: "domain" });
  const one = (caption, words, z) => figure("matrix-plots", caption, words, 250, () => [{
    type: "heatmap", z, zmin: 0, zmax: 1, colorscale: "Cividis", showscale: false, hoverongaps: false, xgap: classes <= 12 ? 1 : 0, ygap: classes <= 12 ? 1 : 0,
    customdata: z.map((row, i) => row.map((v, j) => [names[i], names[j], v === null ? "" : (v * v).toFixed(3)])),
    hovertemplate: "true class %{customdata[0]}<br>taken for %{customdata[1]}: %{customdata[2]}<extra></extra>",
  }], () => ({ margin: { l: 28, r: 4, t: 6, b: 26 }, xaxis: axis(), yaxis: { ...axis(), autorange: "reversed", scaleanchor: "x" } }));
  one("Template Q", "The template Q: one on the diagonal, near zero elsewhere", template(classes));
  for (const entry of entries) one(data.methods[entry.method], `P of client ${entry.client} under ${data.methods[entry.method]}`, unpack(entry[kind], classes));
}

function fillWeights() {
  const options = data.shares.map((s, i) => [i, `${data.methods[s.method]}, ${seedText(s)}`, data.problems[s.problem].title]);
  fill(at("weight-pick"), options.filter(([i]) => shows(data.shares[i])));
}

function drawWeights() {
  clear("weight-plots");
  const pick = at("weight-pick").value;
  if (pick === "") {
    at("weight-plots").append(absent("Aggregation weights are not recorded in these runs."));
    return;
  }
  const run = data.shares[pick];
  const z = Array.from({ length: run.clients }, () => run.rounds.map(() => null));
  run.participants.forEach((clients, t) => clients.forEach((client, i) => { if (z[client]) z[client][t] = run.shares[t][i]; }));
  const all = run.shares.flat();
  const [low, high] = [least(all), greatest(all)];
  const far = Math.max(high - 1, 1 - low);
  const words = far < 0.0005 ? "every participant has an equal share in every round" : `shares from ${low.toFixed(3)} to ${high.toFixed(3)} of an equal one`;
  const about = make("small", {}, `, ${data.problems[run.problem].title}, ${seedText(run)}: ${words}`);
  // Orange is more, blue is less; grey in the middle shows on white and on black.
  const scale = [[0, "#0072B2"], [0.5, "#b7bdc4"], [1, "#D55E00"]];
  figure("weight-plots", [data.methods[run.method], about], words, 90 + Math.min(run.clients, 60) * (narrow.matches ? 12 : 15), () => [{
    type: "heatmap", x: run.rounds, z, zmid: 1, zmin: 1 - (far || 0.1), zmax: 1 + (far || 0.1), colorscale: scale, hoverongaps: false,
    xgap: run.rounds.length > 100 ? 0 : 1, ygap: run.clients > 60 ? 0 : 1, hovertemplate: "round %{x}, client %{y}: %{z:.4f}<extra></extra>",
    colorbar: { thickness: 10, outlinewidth: 0, nticks: 5, tickformat: far < 0.05 ? ".3f" : ".2f" },
  }], () => ({
    xaxis: { title: { text: "round", standoff: 6 }, showgrid: false, zeroline: false },
    yaxis: { title: { text: "client", standoff: 6 }, autorange: "reversed", showgrid: false, zeroline: false },
  }));
}

function fillCost() {
  const best = Math.max(0, ...data.groups.filter(shows).map((g) => g.row.best?.mean ?? 0));
  const shares = [50, 70, 80, 90, 95, 99].map((v) => [`of:${v}`, `${v} % of the best there`, "Relative"]);
  const levels = [10, 20, 30, 40, 50, 60, 65, 70, 75, 80, 85, 90, 95, 97, 99].filter((v) => v <= best).map((v) => [`at:${v}`, `${v} %`, "Accuracy"]);
  fill(at("cost-target"), [...shares, ...levels], "of:90");
}

function drawContents() {
  const sections = [...document.querySelectorAll("section")];
  at("contents").append(...sections.map((s) => make("li", {}, make("a", { href: `#${s.id}` }, s.querySelector("h2").textContent))));
}

function drawNotes() {
  const list = data.notes.map((note) => make("li", {}, note));
  at("notes").replaceChildren(...(list.length ? [make("h3", {}, "Notes"), make("ul", { class: "notes" }, ...list)] : []));
}

const drawAccuracy = () => drawCurves("curve-plots", "accuracy", at("curve-x").value, at("curve-smooth").checked);

function drawPairs() {
  drawDifferencePlots();
  drawDifferences();
}

function render() {
  wave += 1;
  queue.length = 0;
  at("nothing").hidden = data.groups.some(shows);
  fillBase();
  fillPartition();
  fillMatrices();
  fillWeights();
  fillCost();
  for (const draw of [drawHeadlines, drawAccuracy, drawTable, drawPairs, drawClasses, drawRisk, drawPartition, drawMatrices, drawWeights, drawCost, drawRuns]) draw();
  later(() => {});
}

const CONTROLS = {
  "curve-x": drawAccuracy, "curve-smooth": drawAccuracy, "difference-base": drawPairs, "class-sort": drawClasses, "risk-metric": drawRisk,
  "risk-smooth": drawRisk, "partition-pick": drawPartition, "matrix-pick": drawMatrices, "matrix-kind": drawMatrices, "weight-pick": drawWeights, "cost-target": drawCost,
};

function start() {
  const folders = `${data.runs.length} run${data.runs.length === 1 ? "" : "s"}`;
  const open = data.runs.filter((run) => run.state.startsWith("unfinished")).length;
  at("made").textContent = `${folders}${open ? `, ${open} unfinished` : ""}. Written ${data.made}.`;
  if (window.matchMedia("(max-width: 62rem)").matches) at("panel").open = false;
  // Many lines of single rounds cannot be told apart. But of summaries there are single rounds alone: all are drawn alike.
  const smooth = data.methods.length > 6 && !data.runs.some((run) => run.summary);
  for (const id of ["curve-smooth", "risk-smooth"]) at(id).checked = smooth;
  at("matrix-kind").value = data.matrices.some((entry) => entry.test) ? "test" : "own";
  for (const [id, draw] of Object.entries(CONTROLS)) at(id).addEventListener("change", draw);
  at("filters").addEventListener("submit", (event) => event.preventDefault());
  const again = () => { drawFilters(); render(); };
  let resized;
  window.addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(() => Object.values(tables).forEach((draw) => draw()), 100);
  });
  dark.addEventListener("change", again);
  narrow.addEventListener("change", again);
  drawContents();
  drawNotes();
  again();
}

async function begin() {
  if (!window.DecompressionStream) {
    at("main").replaceChildren(absent("This browser is too old for this page: it needs one of 2023 or later."));
    return;
  }
  data = JSON.parse(await unpacked("data"));
  const library = document.createElement("script");
  library.textContent = await unpacked("plotly");
  document.head.append(library);
  start();
}

begin();

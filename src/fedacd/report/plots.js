// Plots. Each is queued and drawn when the browser has a moment, so that the page answers while it fills.

const queue = [];
let wave = 0;
let busy = false;

function later(draw) {
  queue.push([wave, draw]);
  document.body.dataset.state = "drawing";
  if (!busy) {
    busy = true;
    setTimeout(work, 0);
  }
}

function work() {
  const until = performance.now() + 40;
  while (queue.length && performance.now() < until) {
    const [of, draw] = queue.shift();
    if (of === wave) draw();
  }
  busy = queue.length > 0;
  if (busy) setTimeout(work, 0);
  else document.body.dataset.state = "ready";
}

// Empty a place of its plots and give back what belongs to them.
function clear(id) {
  for (const old of at(id).querySelectorAll(".plot")) Plotly.purge(old);
  at(id).replaceChildren();
}

// A plot under a caption, described in words for those who cannot see it.
function figure(id, caption, words, height, traces, layout) {
  const plot = make("div", { class: "plot", role: "img", "aria-label": words, style: `height:${height}px` });
  const title = make("figcaption", {}, ...[caption].flat());
  const name = title.textContent;
  title.append(saveButton("SVG", name, () => save(plot, name)));
  at(id).append(make("figure", {}, title, plot));
  later(() => {
    // No mode bar: it covers what is shown, and one of its buttons would send the data away.
    Plotly.newPlot(plot, traces(), merged(layout()), { responsive: true, displayModeBar: false });
  });
  return plot;
}

// A file of the plot as it is seen. In the page the names of lines stand below it; in the file, beside.
function save(plot, name) {
  if (!plot.data) return; // it is not drawn yet
  const { width, height } = plot.getBoundingClientRect();
  const traces = plot.data.map((trace) => ({ ...trace, showlegend: trace.mode === "lines" && !trace.fill }));
  const named = traces.filter((trace) => trace.showlegend).length;
  const layout = { ...plot.layout, showlegend: named > 0, legend: { itemwidth: 40 }, paper_bgcolor: theme("paper"), margin: { ...plot.layout.margin, t: 40 }, title: { text: plain(name), x: 0.02, font: { size: 14 } } };
  const filename = fileName(`${plot.closest("section").id} ${name}`);
  const size = { width: width + (named ? 200 : 0), height: Math.max(height + 30, 110 + 20 * named) };
  Plotly.downloadImage({ data: traces, layout }, { format: "svg", ...size, filename });
}

function merged(layout) {
  const axis = { gridcolor: theme("grid"), linecolor: theme("line"), zerolinecolor: theme("line"), automargin: true, ticks: "" };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { family: "system-ui, sans-serif", size: narrow.matches ? 11 : 12, color: theme("ink") },
    margin: { l: 46, r: 12, t: 14, b: 42 }, dragmode: coarse.matches ? false : "zoom",
    hoverlabel: { bgcolor: theme("raised"), bordercolor: theme("line"), font: { color: theme("ink") }, align: "left" },
    ...layout,
    xaxis: { ...axis, ...layout.xaxis },
    yaxis: { ...axis, ...layout.yaxis },
  };
}

// Long names break before what sets them apart, so that they leave room for the plot.
const folded = (name) => (narrow.matches ? plain(name).split(" (").join("<br>(").split(", ").join(",<br>") : plain(name));

// A line stands out while its entry is pointed at or has the focus. The Tab key stops once at a legend, arrows go on.
function legend(plot, groups) {
  const entries = groups.map((group, i) => {
    const entry = make("button", { type: "button", tabindex: i ? -1 : 0 }, swatch(group.method), data.methods[group.method]);
    for (const begin of ["mouseenter", "focus"]) entry.addEventListener(begin, () => stress(plot, group.method));
    for (const end of ["mouseleave", "blur"]) entry.addEventListener(end, () => stress(plot, null));
    entry.addEventListener("keydown", (event) => {
      const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!way) return;
      event.preventDefault();
      const next = entries[(i + way + entries.length) % entries.length];
      entry.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
    return entry;
  });
  return make("div", { class: "legend", role: "toolbar", "aria-label": "Lines" }, ...entries);
}

function stress(plot, method) {
  if (!plot.data) return; // it is not drawn yet
  const faint = (trace) => method !== null && trace.meta !== method;
  const width = (trace) => (trace.fill ? 0 : method !== null && trace.meta === method ? 4 : 2);
  Plotly.restyle(plot, { opacity: plot.data.map((trace) => (faint(trace) ? 0.12 : 1)), "line.width": plot.data.map(width) });
}

const remark = (plot, text) => plot.parentNode.append(make("p", { class: "missing" }, text));

// Who has nothing here, and where nobody has anything.
function missing(plot, problem, groups) {
  const names = groupsOf(problem).filter((g) => !groups.includes(g)).map((g) => data.methods[g.method]);
  if (names.length) remark(plot, `Not recorded: ${names.join(", ")}.`);
}

function missingAltogether(id, problems) {
  const titles = shownProblems().filter((p) => !problems.includes(p)).map((p) => data.problems[p].title);
  if (problems.length === 0) at(id).append(absent("Not recorded in these runs."));
  else if (titles.length) at(id).append(make("p", { class: "missing" }, `Not recorded on ${titles.join("; ")}.`));
}

const UNITS = {
  accuracy: "accuracy %", accuracy_client: "client accuracy %", risk: "risk", kl_local: "KL(P‖Q), own data",
  kl_test: "KL(P‖Q), test set", train_loss: "training loss",
};
const AXES = { round: "round", seconds: "seconds", megabytes: "megabytes, all clients" };

// The groups with something to draw: of a summary neither seconds nor megabytes are known.
const drawable = (problem, metric, x) => groupsOf(problem).filter((g) => g.curves?.[metric] && g.curves[x].some((v) => v !== null));

function curveTraces(problem, metric, x, smooth) {
  const [middle, sd] = smooth ? ["smooth", "smooth_sd"] : ["mean", "sd"];
  const bands = [];
  const lines = [];
  for (const group of drawable(problem, metric, x)) {
    const found = group.curves[metric];
    const xs = group.curves[x];
    const ys = found[middle];
    const name = plain(data.methods[group.method]);
    const tint = colour(group.method);
    if (found[sd]) {
      const known = ys.map((_, i) => i).filter((i) => ys[i] !== null && found[sd][i] !== null && xs[i] !== null);
      const edge = (sign) => known.map((i) => ys[i] + sign * found[sd][i]);
      bands.push({
        type: "scatter", mode: "lines", x: [...known.map((i) => xs[i]), ...known.map((i) => xs[i]).reverse()],
        y: [...edge(1), ...edge(-1).reverse()], fill: "toself", meta: group.method, fillcolor: faded(tint, 0.15), line: { width: 0 }, hoverinfo: "skip",
      });
    }
    const digits = metric.startsWith("accuracy") ? 2 : 3;
    lines.push({
      type: "scatter", mode: ys.length === 1 ? "markers" : "lines", name, meta: group.method, x: xs, y: ys, line: { color: tint, width: 2, dash: dash(group.method) },
      marker: { color: tint }, hovertemplate: `${name}: %{y:.${digits}f}<extra></extra>`,
    });
  }
  return [...bands, ...lines];
}

function drawCurves(id, metric, x, smooth) {
  clear(id);
  const problems = shownProblems().filter((p) => drawable(p, metric, x).length);
  for (const problem of problems) {
    const groups = drawable(problem, metric, x);
    const words = `${UNITS[metric]} over ${AXES[x]} on ${data.problems[problem].title}: ${groups.map((g) => data.methods[g.method]).join(", ")}`;
    const height = narrow.matches ? 300 : problems.length === 1 ? 460 : 340;
    const plot = figure(id, data.problems[problem].title, words, height, () => curveTraces(problem, metric, x, smooth), () => ({
      hovermode: groups.length > 6 ? "closest" : "x unified",
      margin: { l: 58, r: 12, t: 14, b: 46 }, // of a fixed size, so that the plots of a section line up
      xaxis: { title: { text: AXES[x], standoff: 8 }, rangemode: "tozero", automargin: false },
      yaxis: { title: { text: UNITS[metric], standoff: 6 }, automargin: false },
    }));
    plot.after(legend(plot, groups));
    missing(plot, problem, groups);
  }
  missingAltogether(id, problems);
}

// What a difference's mark says; the words are in the page. The dot of one is as wide as its line.
const MARKS = { sure: "circle", likely: "circle-open-dot", unsure: "circle-open", "one seed": "diamond-open" };

function drawDifferencePlots() {
  clear("difference-plots");
  const rows = differences();
  const base = at("difference-base").value;
  at("difference-marks").hidden = base === "all" || rows.length === 0;
  if (base === "all") return;
  for (const problem of shownProblems()) {
    const mine = rows.filter((row) => row.problem === problem).sort((a, b) => a.mean - b.mean);
    if (mine.length === 0) continue;
    const words = mine.map((row) => `${data.methods[row.a]} ${fixed(row.mean, 2)} points, ${row.verdict}`).join("; ");
    figure("difference-plots", [data.problems[problem].title, make("small", {}, ` minus ${data.methods[mine[0].b]}`)], words, 76 + 30 * mine.length, () => [{
      type: "scatter", mode: "markers", x: mine.map((row) => row.mean), y: mine.map((_, i) => i),
      marker: { size: 12, color: mine.map((row) => colour(row.a)), symbol: mine.map((row) => MARKS[row.verdict]), line: { width: mine.map((row) => (row.verdict === "likely" ? 3 : 2)) } },
      error_x: { type: "data", symmetric: false, visible: mine.some((row) => row.high !== null), array: mine.map((row) => (row.high === null ? NaN : row.high - row.mean)), arrayminus: mine.map((row) => (row.low === null ? NaN : row.mean - row.low)), color: theme("soft"), thickness: 1.5, width: 4 },
      text: mine.map((row) => `${plain(data.methods[row.a])}: ${fixed(row.mean, 2)} points, ${row.verdict}`), hovertemplate: "%{text}<extra></extra>",
    }], () => ({
      xaxis: { title: { text: "points of accuracy", standoff: 6 }, zeroline: true, zerolinewidth: 2, zerolinecolor: theme("soft"), range: reach(mine) },
      yaxis: { tickvals: mine.map((_, i) => i), ticktext: mine.map((row) => folded(data.methods[row.a])), range: [-0.7, mine.length - 0.3], showgrid: false, zeroline: false },
    }));
  }
}

// Intervals of two or three seeds can be very wide: the axis ends at four times the largest difference.
function reach(rows) {
  const far = 4 * Math.max(0.5, ...rows.map((row) => Math.abs(row.mean)));
  const low = Math.min(0, ...rows.map((row) => Math.max(row.low ?? row.mean, -far)));
  const high = Math.max(0, ...rows.map((row) => Math.min(row.high ?? row.mean, far)));
  const edge = 0.06 * (high - low || 1);
  return [low - edge, high + edge];
}

const className = (problem, i) => (data.problems[problem].names ? `${i} ${data.problems[problem].names[i]}` : String(i));

function classAxis(problem, order) {
  const names = data.problems[problem].names;
  const each = order.length <= 20;
  const step = each ? 1 : Math.ceil(order.length / (narrow.matches ? 8 : 20));
  const places = order.map((_, i) => i).filter((i) => i % step === 0);
  const text = (i) => (each && names && !narrow.matches ? plain(names[order[i]]) : String(order[i]));
  return { tickvals: places, ticktext: places.map(text), showgrid: false, zeroline: false, title: { text: "class", standoff: 6 } };
}

function drawClasses() {
  clear("class-plots");
  const problems = shownProblems().filter((p) => groupsOf(p).some((g) => g.per_class));
  for (const problem of problems) {
    const groups = groupsOf(problem).filter((g) => g.per_class);
    const order = groups[0].per_class.map((_, i) => i);
    if (at("class-sort").checked) order.sort((a, b) => (groups[0].per_class[b] ?? -1) - (groups[0].per_class[a] ?? -1));
    const words = groups.map((g) => `${data.methods[g.method]}: worst class ${fixed(Math.min(...g.per_class.filter((v) => v !== null)), 1)} %`).join("; ");
    const labelled = order.length <= 12 && !narrow.matches;
    const plot = figure("class-plots", data.problems[problem].title, words, 92 + 30 * groups.length, () => [{
      type: "heatmap", z: groups.map((g) => order.map((i) => g.per_class[i])), zmin: 0, zmax: 100, colorscale: "Cividis", xgap: order.length > 30 ? 0 : 1, ygap: 2,
      customdata: groups.map(() => order.map((i) => plain(className(problem, i)))), text: groups.map((g) => order.map(() => plain(data.methods[g.method]))),
      texttemplate: labelled ? "%{z:.0f}" : "", hovertemplate: "%{text}<br>class %{customdata}: %{z:.1f} %<extra></extra>",
      colorbar: { thickness: 10, outlinewidth: 0, ticksuffix: " %", nticks: 3 },
    }], () => ({
      xaxis: classAxis(problem, order),
      yaxis: { tickvals: groups.map((_, i) => i), ticktext: groups.map((g) => folded(data.methods[g.method])), autorange: "reversed", showgrid: false, zeroline: false },
    }));
    missing(plot, problem, groups);
    const partly = groups.filter((g) => g.classed < g.counted).map((g) => `${data.methods[g.method]} (${g.classed} of ${g.counted})`);
    if (partly.length) remark(plot, `Recorded for some of the seeds: ${partly.join(", ")}.`);
  }
  missingAltogether("class-plots", problems);
}

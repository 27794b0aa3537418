"use strict";
// What every part of the page uses: the data, what the filters let through, elements, colours.

let data; // set by `begin`, before anything is drawn
const at = (id) => document.getElementById(id);

// The text of an element that was packed to keep the page small: deflate, base64.
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(at(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

// Okabe and Ito's colours less yellow, which cannot be seen on white; black turns light in dark mode.
const COLOURS = ["#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "ink"];
const DARK_COLOURS = { "#0072B2": "#3D9BE0", "#D55E00": "#F07A2E" };
// Plotly's names of dashes, and what they are in a swatch.
const STROKES = { solid: "", dash: "6 4", dot: "2 3", dashdot: "6 3 2 3", longdash: "9 4", longdashdot: "9 3 2 3" };
const DASHES = Object.keys(STROKES);

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 40rem)");
const coarse = window.matchMedia("(pointer: coarse)");

function theme(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function colour(method) {
  const chosen = COLOURS[method % COLOURS.length];
  if (chosen === "ink") return theme("ink");
  return (dark.matches && DARK_COLOURS[chosen]) || chosen;
}

// Seven colours and six dashes: 42 methods before two look alike.
const dash = (method) => DASHES[method % DASHES.length];

function faded(hex, alpha) {
  const part = (i) => parseInt(hex.slice(i, i + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
}

// An element with attributes and children; text is never read as HTML.
function make(tag, attributes = {}, ...children) {
  const space = ["svg", "line"].includes(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Plotly reads a few tags in texts, so a name must not look like one.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const absent = (text) => make("p", { class: "absent" }, text);

function fixed(value, digits) {
  return value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");
}

// A button that saves what has this name as a file of a kind.
function saveButton(kind, name, save) {
  const button = make("button", { type: "button", class: "save", title: `Save as ${kind}`, "aria-label": `Save as ${kind}: ${name}` }, kind);
  button.addEventListener("click", save);
  return button;
}

const fileName = (text) => text.replace(/[^\w.-]+/g, "-").toLowerCase();

const FILTERS = {
  dataset: { title: "Data set", of: (problem) => problem.dataset },
  skew: { title: "Skew", of: (problem) => problem.skew },
  rest: { title: "Setting", of: (problem) => problem.rest || "usual" },
};

const off = { dataset: new Set(), skew: new Set(), rest: new Set(), method: new Set() };

const showsProblem = (number) =>
  Object.entries(FILTERS).every(([name, filter]) => !off[name].has(filter.of(data.problems[number])));
const showsMethod = (number) => !off.method.has(data.methods[number]);
const shows = (entry) => showsProblem(entry.problem) && (entry.method === undefined || showsMethod(entry.method));
const shownProblems = () => data.problems.map((_, i) => i).filter((i) => data.groups.some((g) => g.problem === i && shows(g)));
const groupsOf = (problem) => data.groups.filter((group) => group.problem === problem && shows(group));

function swatch(method) {
  const line = { x1: 1, y1: 6, x2: 27, y2: 6, stroke: colour(method), "stroke-width": 3, "stroke-dasharray": STROKES[dash(method)] };
  return make("svg", { width: 28, height: 12, "aria-hidden": "true" }, make("line", line));
}

function fieldset(name, title, values, mark) {
  const boxes = values.map((value, i) => {
    const box = make("input", { type: "checkbox", name, value, checked: !off[name].has(value) });
    box.addEventListener("change", () => {
      if (box.checked) off[name].delete(value);
      else off[name].add(value);
      render();
    });
    return [box, make("label", {}, box, mark ? mark(i) : null, make("span", {}, value))];
  });
  const all = (on) => {
    const button = make("button", { type: "button" }, on ? "all" : "none");
    button.addEventListener("click", () => {
      for (const [box] of boxes) box.checked = on;
      off[name] = new Set(on ? [] : values);
      render();
    });
    return button;
  };
  const buttons = values.length > 3 ? [all(true), all(false)] : [];
  return make("fieldset", { "data-filter": name }, make("legend", {}, title), ...boxes.map(([, label]) => label), ...buttons);
}

function drawFilters() {
  const sets = Object.entries(FILTERS).map(([name, filter]) => {
    const values = [...new Set(data.problems.map(filter.of))];
    return values.length > 1 || name !== "rest" ? fieldset(name, filter.title, values) : null;
  });
  at("filters").replaceChildren(...sets.filter(Boolean), fieldset("method", "Method", data.methods, swatch));
}

// Fill a select box and keep its choice where it is still there. Options: [value, text, group where there are any].
function fill(select, options, usual) {
  const before = select.value;
  const groups = new Map();
  for (const [value, text, group] of options) {
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(make("option", { value }, text));
  }
  const parts = [...groups].flatMap(([group, list]) => (group ? [make("optgroup", { label: group }, ...list)] : list));
  select.replaceChildren(...parts);
  const values = options.map(([value]) => String(value));
  select.value = values.includes(before) ? before : String(usual ?? values[0] ?? "");
  select.closest(".controls").hidden = values.length === 0;
}

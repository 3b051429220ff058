"use strict";

// Sorting. A cell with data-value is a number; a cell without anything goes last, both ways.
function compare(one, other, sign) {
  const missing = one.classList.contains("missing") - other.classList.contains("missing");
  if (missing) return missing;
  const a = one.dataset.value;
  const b = other.dataset.value;
  if (a !== undefined && b !== undefined) return sign * (Number(a) - Number(b));
  if ((a === undefined) !== (b === undefined)) return sign * (a === undefined ? 1 : -1);
  return sign * one.textContent.localeCompare(other.textContent, undefined, { numeric: true });
}

function sortBy(head) {
  const sign = head.ariaSort === "ascending" ? -1 : 1;
  for (const each of head.parentNode.cells) each.ariaSort = "none";
  head.ariaSort = sign > 0 ? "ascending" : "descending";
  const body = head.closest("table").tBodies[0];
  const rows = [...body.rows].sort((a, b) =>
    compare(a.cells[head.cellIndex], b.cells[head.cellIndex], sign));
  body.append(...rows);
}

for (const head of document.querySelectorAll("th")) {
  head.addEventListener("click", () => sortBy(head));
}

// Charts, in the colours of the page.
const figures = JSON.parse(document.getElementById("figures").textContent);
const settings = { responsive: true, displaylogo: false };

function colored(layout) {
  const style = getComputedStyle(document.documentElement);
  const color = name => style.getPropertyValue(name).trim();
  const result = {
    ...layout,
    autosize: true,
    margin: { l: 60, r: 20, t: 20, b: 50, ...layout.margin },
    paper_bgcolor: "rgba(0, 0, 0, 0)",
    plot_bgcolor: "rgba(0, 0, 0, 0)",
    font: { family: "system-ui, sans-serif", size: 13, color: color("--text") },
    hoverlabel: { align: "left" },
    annotations: (layout.annotations || []).map(
      each => ({ ...each, bgcolor: color("--back") })),
  };
  for (const name of Object.keys(layout).concat("xaxis", "yaxis")) {
    if (!/^[xy]axis\d*$/.test(name)) continue;
    result[name] = {
      zeroline: false, gridcolor: color("--grid"), linecolor: color("--line"), ...layout[name],
    };
  }
  for (const menu of result.updatemenus || []) {
    menu.bgcolor = color("--panel");
    menu.bordercolor = color("--line");
  }
  return result;
}

function draw() {
  for (const [name, figure] of Object.entries(figures)) {
    Plotly.react(name, figure.data, colored(figure.layout), settings);
  }
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

// One job alone: the others' lines fade, until it is chosen again.
function choose(row) {
  const chosen = row.classList.contains("chosen") ? undefined : row.dataset.job;
  for (const each of row.parentNode.rows) {
    each.classList.toggle("chosen", each.dataset.job === chosen);
  }
  for (const [name, figure] of Object.entries(figures)) {
    if (!figure.data.some(trace => trace.meta !== undefined)) continue;
    const opacity = figure.data.map(
      trace => chosen === undefined || trace.meta === chosen ? 1 : 0.07);
    Plotly.restyle(name, { opacity });
  }
}

for (const row of document.querySelectorAll("tr[data-job]")) {
  row.addEventListener("click", () => choose(row));
}

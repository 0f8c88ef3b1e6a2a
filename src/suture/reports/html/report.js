"use strict";
// Plotly has drawn every figure by now. This switches views and lines, and the colours for dark pages and for paper.
(() => {
  const night = matchMedia("(prefers-color-scheme: dark)");
  const THEMES = [["#1b1b1a", "#dcdcd6", "#fdfdfb"], ["#e8e7e3", "#36373a", "#151617"]];
  const plots = [...document.querySelectorAll(".plotly-graph-div")];
  const opened = new Set();
  let printing = false;

  function paint(plot) {
    const figure = plot.closest("figure");
    const dark = night.matches && !printing ? 1 : 0;
    const [ink, rule, paper] = THEMES[dark];
    const view = Number(figure.querySelector("select")?.value ?? 0);
    for (const button of figure.querySelectorAll(".legend button"))
      button.hidden = !plot.data.some(({ meta }) => meta.view === view && meta.name === button.value);
    const hidden = [...figure.querySelectorAll(".legend [aria-pressed=false]")].map((button) => button.value);
    const traces = { visible: plot.data.map(({ meta }) => meta.view === view && !hidden.includes(meta.name)) };
    plot.data.forEach(({ meta }, i) => Object.entries(meta.colours).forEach(([path, colours]) => {
      traces[path] ??= Array(plot.data.length).fill(undefined);
      traces[path][i] = colours[dark];
    }));
    const layout = { ...plot.layout.meta.views[view].sets, "font.color": ink, "hoverlabel.bgcolor": paper,
      "hoverlabel.bordercolor": rule, "hoverlabel.font.color": ink, width: printing ? 640 : null, autosize: !printing };
    for (const axis of ["xaxis", "yaxis"]) Object.assign(layout, { [`${axis}.gridcolor`]: rule, [`${axis}.linecolor`]: ink });
    return Plotly.update(plot, traces, layout);
  }

  function print(on) {
    if (on === printing) return;
    printing = on;
    for (const details of document.querySelectorAll("details")) {
      if (on && !details.open) { opened.add(details); details.open = true; }
      else if (!on && opened.delete(details)) details.open = false;
    }
    plots.forEach(paint);
  }

  for (const plot of plots) {
    const figure = plot.closest("figure");
    figure.querySelector("select")?.addEventListener("change", () => paint(plot));
    for (const button of figure.querySelectorAll(".legend button")) button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "false");
      paint(plot);
    });
  }
  night.addEventListener("change", () => plots.forEach(paint));
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  matchMedia("print").addEventListener("change", (event) => print(event.matches));
  plots.forEach(paint);
})();

"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const night = matchMedia("(prefers-color-scheme: dark)");
  const DAY = { paper: "#fdfdfb", ink: "#1b1b1a", soft: "#5c5c58", rule: "#dcdcd6" };
  const DARK = { paper: "#151617", ink: "#e8e7e3", soft: "#a5a49e", rule: "#36373a" };
  const HINT = "Point at a place, tap it, or focus the figure and use the arrow keys, to read its numbers.";
  const CONFIG = { displayModeBar: false, responsive: false, scrollZoom: false, doubleClick: false };
  let printing = false;

  const isDark = () => night.matches && !printing;
  const theme = () => (isDark() ? DARK : DAY);
  const colour = (line) => line.colour[isDark() ? 1 : 0];
  // Plotly reads a little HTML in texts, and mathematics between dollars: names are no such thing.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\$/g, "&#36;");
  const short = (text, most) => {
    const letters = [...text];
    return letters.length <= most ? text : letters.slice(0, most >> 1).join("") + "…" + letters.slice(-(most >> 1) + 1).join("");
  };
  // As Python writes a number: a tie, such as 12.25, goes to the even digit, where toFixed goes up; and there is no -0.
  const rounded = (value, digits) => {
    if (Math.abs(value) < 0.5 * 10 ** -digits) return (0).toFixed(digits);
    const scaled = Math.abs(value) * 10 ** digits;
    const tie = Number.isInteger(value * 2 ** (digits + 1)) && scaled % 1 === 0.5;
    const even = 2 * Math.round(scaled / 2);
    return tie ? ((Math.sign(value) * even) / 10 ** digits).toFixed(digits) : value.toFixed(digits);
  };
  const there = (value) => value !== null && value !== undefined;
  const make = (tag, parent, settings = {}, text = null) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(settings)) made.setAttribute(name, value);
    if (text !== null) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };

  class Figure {
    constructor(element, chart) {
      Object.assign(this, { element, chart, measure: 0, panel: 0, place: null, drawn: false, hidden: new Set() });
      this.plot = element.querySelector(".plot");
      this.readout = element.querySelector(".readout");
      this.switches = element.querySelector(".switches");
      this.columns = chart.columns.length;
      this.rows = chart.rows.length;
      this.plot.addEventListener("keydown", (event) => this.key(event));
      this.plot.addEventListener("focus", () => { if (this.place === null) this.say(HINT, true); });
      chart.measures.forEach((measure) => measure.lines.filter((line) => line.hidden).forEach((line) => this.hidden.add(line.name)));
      this.say(HINT, true);
      this.build();
    }

    get shown() { return this.chart.measures[this.measure]; }
    get panels() { return this.shown.lines.filter((line) => !line.strip); }
    get strips() { return this.shown.lines.filter((line) => line.strip); }

    // --- switches ---------------------------------------------------------------------------------------------------
    build() {
      const { measures } = this.chart;
      const shows = [...new Set(measures.map((measure) => measure.show))];
      this.switches.replaceChildren();
      this.switches.classList.toggle("keys", this.chart.kind === "curve");
      if (shows.length > 1) {
        const group = make("div", this.switches, { class: "group shows", role: "group", "aria-label": "What to show" });
        for (const show of shows) {
          const button = make("button", group, { type: "button", "aria-pressed": show === this.shown.show }, show);
          button.addEventListener("click", () => this.choose(this.nearest(show), button));
        }
      }
      const alike = measures.filter((measure) => measure.show === this.shown.show);
      if (alike.length > 1) this.select(this.shown.show === "Similarity" ? "Index" : "Score",
        alike.map((measure) => [measures.indexOf(measure), measure.of]), this.measure, (value) => this.choose(value));
      if (this.chart.kind === "matrix" && this.panels.length > 1) this.select("Control",
        this.panels.map((line, i) => [i, line.name]), this.panel, (value) => { this.panel = value; this.changed(); });
      if (this.chart.kind === "curve") this.legend();
    }

    select(label, options, chosen, change) {
      const around = make("label", this.switches, {}, label);
      const select = make("select", around, { "data-switch": label });
      for (const [value, name] of options) make("option", select, { value }, name);
      select.value = String(chosen);
      select.addEventListener("change", () => {
        change(Number(select.value));
        this.switches.querySelector(`[data-switch="${label}"]`)?.focus();
      });
    }

    legend() {
      const group = make("div", this.switches, { class: "group lines", role: "group", "aria-label": "Lines" });
      this.shown.lines.forEach((line) => {
        const button = make("button", group, { type: "button", "aria-pressed": !this.hidden.has(line.name) });
        button.append(swatch(line), document.createTextNode(line.name));
        button.addEventListener("click", () => {
          if (!this.hidden.delete(line.name)) this.hidden.add(line.name);
          button.setAttribute("aria-pressed", !this.hidden.has(line.name));
          this.changed(`${line.name} ${this.hidden.has(line.name) ? "hidden" : "shown"}`);
        });
      });
      Object.keys(this.shown.levels).forEach((name, i) => {
        const key = make("span", group, { class: "key" });
        key.append(dash(i), document.createTextNode(name));
      });
    }

    nearest(show) {
      const { measures } = this.chart;
      const same = measures.findIndex((measure) => measure.show === show && measure.of === this.shown.of);
      return same >= 0 ? same : measures.findIndex((measure) => measure.show === show);
    }

    choose(measure, button = null) {
      const name = this.panels[this.panel]?.name;
      this.measure = measure;
      this.panel = Math.max(0, this.panels.findIndex((line) => line.name === name));
      this.build();
      if (button) [...this.switches.querySelectorAll(".shows button")].find((b) => b.textContent === button.textContent)?.focus();
      this.changed();
    }

    changed(said = null) {
      this.draw();
      if (this.place !== null) this.say(this.tell(this.place));
      else this.say(said || `Now showing ${this.shown.label}${this.chart.kind === "matrix" && this.panels.length > 1 ? `, ${this.panels[this.panel].name}` : ""}.`);
    }

    // --- what is read of a place ------------------------------------------------------------------------------------
    say(text, hint = false) {
      this.readout.classList.toggle("hint", hint);
      if (this.readout.textContent !== text) this.readout.textContent = text;
    }

    at(line, place) { return line.strip ? place % this.columns : place; }

    written(measure, line, place) {
      const i = this.at(line, place);
      const value = line.value[i];
      const failed = (line.failed || []).includes(i);
      if (!there(value)) return failed ? "failed" : "";
      const fixed = (x, sign) => {
        const text = rounded(x, measure.digits);
        return (sign && !text.startsWith("-") ? "+" : "") + text;
      };
      const unit = measure.unit ? ` ${measure.unit}` : "";
      const spread = line.low && there(line.low[i]) ? ` [${fixed(line.low[i])}, ${fixed(line.high[i])}]` : "";
      return fixed(value, measure.signed) + unit + spread + (failed ? " *" : "");
    }

    where(place) {
      if (!this.rows) return this.chart.columns[place];
      return `${this.chart.rows[Math.floor(place / this.columns)]} → ${this.chart.columns[place % this.columns]}`;
    }

    tell(place) {
      const { shown } = this;
      const first = this.chart.kind === "matrix" ? this.panels[this.panel] : shown.lines[0];
      const value = this.written(shown, first, place) || "not measured";
      const said = [this.where(place), `${shown.of}${first.name === shown.of ? "" : `, ${first.name}`}: ${value}`];
      for (const other of this.chart.measures) {
        const line = other.lines.find((one) => one.name === first.name);
        if (other !== shown && line && (other.of === shown.of || other.show === "Similarity" || shown.show === "Similarity")) {
          const text = this.written(other, line, place);
          if (text) said.push(`${other.show === "Similarity" ? other.of : other.show.toLowerCase()}: ${text}`);
        }
      }
      const others = shown.lines.filter((line) => line !== first).map((line) => [line.name, this.written(shown, line, place)]);
      const known = others.filter(([, text]) => text).map(([name, text]) => `${name} ${text}`);
      if (known.length) said.push(known.join("; "));
      const levels = Object.entries(shown.levels).filter(([name]) => !name.startsWith("no "));
      const unit = shown.unit ? ` ${shown.unit}` : "";
      if (levels.length) said.push(levels.map(([name, x]) => `${name} ${rounded(x, shown.digits)}${unit}`).join("; "));
      if (this.chart.alone) said.push(this.chart.alone);
      return said.join("\n");
    }

    label(place, line) {
      const text = this.tell(place).split("\n");
      if (line && line !== this.shown.lines[0] && this.chart.kind !== "matrix")
        return [text[0], `${line.name}: ${this.written(this.shown, line, place)}`, ...text.slice(1, 2)].map(wrapped).join("<br>");
      return text.map(wrapped).join("<br>");
    }

    // --- drawing ----------------------------------------------------------------------------------------------------
    draw() {
      const width = printing ? 640 : Math.max(240, Math.round(this.element.clientWidth));
      const made = this.chart.kind === "matrix" ? this.matrix(width) : this.lines(width);
      this.drawn = true;
      this.plot.classList.add("bare");
      Plotly.react(this.plot, made.traces, { ...this.layout(width), ...made.layout }, CONFIG);
      this.plot.querySelectorAll("svg").forEach((svg) => svg.setAttribute("aria-hidden", "true"));
      if (!this.listening) {
        this.listening = true;
        this.plot.on("plotly_hover", ({ points }) => {
          const place = points[0].customdata;
          if (there(place)) { this.place = place; this.say(this.tell(place)); }
        });
      }
    }

    layout(width) {
      const { ink, rule, paper } = theme();
      const font = { family: getComputedStyle(this.element).fontFamily, size: 12, color: ink };
      const hoverlabel = { bgcolor: paper, bordercolor: rule, font: { ...font }, align: "left", namelength: 0 };
      return { width, font, hoverlabel, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false,
        hovermode: "closest", hoverdistance: 30, showlegend: false, modebar: { remove: [] } };
    }

    ticks(names, room, most) {
      const step = Math.ceil(13 / room);
      const kept = names.map((name, i) => [i, plain(short(name, most))]).filter(([i]) => i % step === 0);
      return { tickmode: "array", tickvals: kept.map(([i]) => i), ticktext: kept.map(([, name]) => name) };
    }

    lines(width) {
      const { ink, soft, rule } = theme();
      const { shown } = this;
      const bars = this.chart.kind === "bars";
      const most = width < 500 ? 18 : 30;
      const longest = Math.max(...this.chart.columns.map((name) => Math.min([...name].length, most)));
      const room = (width - 70) / this.columns;
      const angle = longest * 7 < room ? 0 : room < 22 ? -90 : -45;
      const names = angle === 0 ? 22 : longest * 6.4 * (angle === -90 ? 1 : 0.72) + 10;
      const base = { fixedrange: true, linecolor: ink, tickcolor: ink, zeroline: false, ticks: "outside", ticklen: 3 };
      const traces = shown.lines.filter((line) => !this.hidden.has(line.name)).flatMap((line) => bars ? this.bars(line) : this.line(line));
      const shapes = Object.values(shown.levels).map((y, i) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y,
        line: { color: ink, width: 1, dash: i ? "dash" : "solid" }, layer: "below" }));
      if (this.place !== null && !bars) shapes.push({ type: "line", yref: "paper", x0: this.place, x1: this.place, y0: 0, y1: 1,
        line: { color: soft, width: 1, dash: "dot" }, layer: "below" });
      const height = Math.round((width < 500 ? 250 : 320) + names + 30);
      return { traces, layout: {
        height, shapes, margin: { l: 58, r: 10, t: 10, b: Math.round(names + 34) },
        xaxis: { ...base, ...this.ticks(this.chart.columns, room, most), tickangle: angle, range: [-0.5, this.columns - 0.5],
          showgrid: false, title: { text: plain(this.chart.axes[0]), font: { size: 12 }, standoff: 8 } },
        yaxis: { ...base, gridcolor: rule, range: shown.span || undefined, rangemode: bars ? "tozero" : "normal",
          title: { text: plain(shown.label), font: { size: 12 }, standoff: 6 } } } };
    }

    line(line) {
      const main = line === this.shown.lines[0] || line.kind.startsWith("#");
      const shade = colour(line);
      const places = line.value.map((_, i) => i);
      const traces = [];
      const band = (x, y) => traces.push({ type: "scatter", mode: "lines", x, y, fill: "toself", fillcolor: faded(shade, main ? 0.2 : 0.1),
        line: { width: 0 }, hoverinfo: "skip" });
      if (line.low) {
        const held = places.filter((i) => there(line.low[i]) && there(line.value[i]));
        const runs = held.reduce((found, i) => {
          if (found.length && found.at(-1).at(-1) === i - 1) found.at(-1).push(i); else found.push([i]);
          return found;
        }, []);
        for (const run of runs) {
          if (run.length > 1) band([...run, ...run.toReversed()], [...run.map((i) => line.high[i]), ...run.toReversed().map((i) => line.low[i])]);
          else traces.push({ type: "scatter", mode: "lines", x: [run[0], run[0]], y: [line.low[run[0]], line.high[run[0]]],
            line: { color: faded(shade, 0.6), width: 2 }, hoverinfo: "skip" });
        }
      }
      traces.push({ type: "scatter", mode: "lines+markers", x: places, y: line.value, customdata: places, connectgaps: false,
        text: places.map((i) => this.label(i, line)), hoverinfo: "text",
        line: { color: shade, width: main ? 2.2 : 1.3, dash: line.dash }, marker: { color: shade, symbol: line.marker, size: this.columns > 30 ? 4 : main ? 7 : 6 } });
      return traces;
    }

    bars(line) {
      const places = line.value.map((_, i) => i);
      const shades = line.bars ? line.bars.map((bar) => colour({ colour: bar })) : colour(line);
      const spread = line.low ? { type: "data", symmetric: false, color: theme().ink, thickness: 1, width: 4,
        array: places.map((i) => (there(line.high[i]) ? line.high[i] - line.value[i] : 0)),
        arrayminus: places.map((i) => (there(line.low[i]) ? line.value[i] - line.low[i] : 0)) } : undefined;
      return [{ type: "bar", x: places, y: line.value, customdata: places, width: 0.6, marker: { color: shades }, error_y: spread,
        text: places.map((i) => this.label(i, line)), textposition: "none", hoverinfo: "text" }];
    }

    matrix(width) {
      const { ink, paper } = theme();
      const { shown, rows, columns, strips } = this;
      this.powers = this.dwarfed();
      const panel = this.panels[Math.min(this.panel, this.panels.length - 1)];
      const most = width < 500 ? 12 : 24;
      const long = (names) => Math.max(...names.map((name) => Math.min([...name].length, most)));
      const left = long([...this.chart.rows, ...strips.map((line) => line.name)]) * 6.8 + (width < 420 ? 10 : 36);
      const aside = width < 420 ? 50 : 66;
      const cell = Math.min(56, (width - left - aside) / columns);
      const tall = Math.max(Math.min(cell, 40), rows > 40 ? 5 : 12);
      const gap = strips.length ? 10 : 0;
      const inner = rows * tall + gap + strips.length * 22;
      const turned = long(this.chart.columns) * 7 > cell;
      const bottom = (turned ? long(this.chart.columns) * 6.6 : 20) + 36;
      const right = Math.max(aside, width - left - cell * columns);
      const range = this.range();
      const map = this.heat(panel, this.chart.rows, range, cell >= 30, "y");
      const traces = [...map, ...strips.flatMap((line, i) => this.heat(line, [line.name], range, cell >= 30, "y2", i))];
      const split = strips.length ? (strips.length * 22) / inner : 0;
      const base = { fixedrange: true, showgrid: false, zeroline: false, ticks: "", showline: false };
      return { traces, layout: {
        height: Math.round(inner + bottom + 12), margin: { l: Math.round(left), r: Math.round(right), t: 12, b: Math.round(bottom) },
        shapes: this.marks(paper, ink),
        coloraxis: { ...this.scale(), cmin: range[0], cmax: range[1], colorbar: { thickness: 10, outlinewidth: 0, x: 1, xpad: 12,
          ...this.powersOfTen(range), tickfont: { size: 11 }, title: { text: plain(shown.unit || ""), side: "top", font: { size: 11 } } } },
        xaxis: { ...base, ...this.ticks(this.chart.columns, cell, most), tickangle: turned ? -90 : 0, range: [-0.5, columns - 0.5],
          anchor: strips.length ? "y2" : "y", title: { text: plain(this.chart.axes[0]), font: { size: 12 }, standoff: 6 } },
        yaxis: { ...base, ...this.ticks(this.chart.rows, tall, most), range: [rows - 0.5, -0.5], domain: [split + gap / inner, 1],
          title: { text: width < 420 ? "" : plain(this.chart.axes[1]), font: { size: 12 }, standoff: 6 } },
        yaxis2: { ...base, ...this.ticks(strips.map((line) => line.name), 22, most), range: [strips.length - 0.5, -0.5],
          domain: [0, Math.max(split, 0.001)], visible: strips.length > 0 } } };
    }

    range() {
      const every = this.values();
      if (this.shown.bright === "middle") { const far = Math.max(1e-9, ...every.map(Math.abs)); return [-far, far]; }
      if (this.shown.span) return this.shown.span;
      const [low, high] = [Math.min(...every), Math.max(...every)].map((value) => this.shade(value));
      return low < high ? [low, high] : [low - 0.5, high + 0.5];
    }

    values() {
      return this.shown.lines.flatMap((line) => line.value).filter(there);
    }

    // as printed: by powers where a few values dwarf all
    dwarfed() {
      const every = this.values().sort((a, b) => a - b);
      const middle = (every[(every.length - 1) >> 1] + every[every.length >> 1]) / 2;
      return this.shown.bright !== "middle" && !this.shown.span && every[0] > 0 && every.at(-1) > 100 * middle;
    }

    shade(value) {
      return this.powers && there(value) ? Math.log10(value) : value;
    }

    powersOfTen(range) {
      if (!this.powers) return {};
      const first = Math.ceil(range[0]);
      const ticks = Array.from({ length: Math.floor(range[1]) - first + 1 }, (_, i) => first + i);
      return { tickvals: ticks, ticktext: ticks.map((power) => String(Number(`1e${power}`))) };
    }

    scale() {
      if (this.shown.bright !== "middle") return { colorscale: "Viridis", reversescale: this.shown.bright === "low" };
      return { colorscale: [[0, "#D55E00"], [0.5, isDark() ? "#2b2c2e" : "#f4f4f0"], [1, isDark() ? "#56B4E9" : "#0072B2"]] };
    }

    heat(line, names, range, numbers, yaxis, strip = null) {
      const { soft } = theme();
      const across = this.columns;
      const rows = strip === null ? this.rows : 1;
      const grid = (cell) => Array.from({ length: rows }, (_, i) => Array.from({ length: across }, (_, j) => cell(i * across + j)));
      const y = strip === null ? names.map((_, i) => i) : [strip];
      const at = (i) => (strip === null ? i : i % across);
      const hover = (i) => (strip === null ? this.label(i, line)
        : [this.chart.columns[i % across], `${line.name}: ${this.written(this.shown, line, i) || "not measured"}`].map(wrapped).join("<br>"));
      const digits = this.shown.unit === "%" || this.shown.unit === "pp" ? 0 : 2;
      const traces = [{ type: "heatmap", x: this.chart.columns.map((_, j) => j), y, yaxis, z: grid((i) => this.shade(line.value[at(i)])), xgap: 1, ygap: 1,
        coloraxis: "coloraxis", customdata: grid((i) => (strip === null ? i : null)), text: grid(hover), hoverinfo: "text", hoverongaps: false }];
      if (numbers) traces.push(this.numbers(line, y, yaxis, grid, range, digits));
      const gone = line.value.map((value, i) => i).filter((i) => !there(line.value[i]));
      if (gone.length) traces.push({ type: "scatter", mode: "text", yaxis, x: gone.map((i) => i % across),
        y: gone.map((i) => (strip === null ? Math.floor(i / across) : strip)), customdata: gone.map((i) => (strip === null ? i : null)),
        text: gone.map((i) => ((line.failed || []).includes(i) ? "×" : "·")), textfont: { color: soft, size: 12 },
        hovertext: gone.map(hover), hoverinfo: "text" });
      return traces;
    }

    numbers(line, y, yaxis, grid, range, digits) {
      const held = line.value.map((value, i) => i).filter((i) => there(line.value[i]));
      const across = this.columns;
      const ink = (value) => {
        let share = (this.shade(value) - range[0]) / (range[1] - range[0] || 1);
        if (this.shown.bright === "low") share = 1 - share;
        if (this.shown.bright === "middle") return Math.abs(share - 0.5) > 0.3 !== isDark() ? "#ffffff" : isDark() ? "#ffffff" : "#1b1b1a";
        return share > 0.6 ? "#1b1b1a" : "#ffffff";
      };
      return { type: "scatter", mode: "text", yaxis, hoverinfo: "skip", x: held.map((i) => i % across),
        y: held.map((i) => (y.length === 1 && this.rows !== 1 ? y[0] : Math.floor(i / across))),
        text: held.map((i) => rounded(line.value[i], digits)),
        textfont: { size: 10, color: held.map((i) => ink(line.value[i])) } };
    }

    marks(paper, ink) {
      const [rows, columns] = this.chart.blocks;
      const rule = (x0, x1, y0, y1) => ({ type: "line", x0: x0 - 0.5, x1: x1 - 0.5, y0: y0 - 0.5, y1: y1 - 0.5, line: { color: ink, width: 2 } });
      const shapes = [...rows.map((at) => rule(0, this.columns, at, at)), ...columns.map((at) => rule(at, at, 0, this.rows))];
      for (const [x, y] of this.chart.steps) shapes.push({ type: "path", path: x.map((at, i) => `${i ? "L" : "M"}${at - 0.5},${y[i] - 0.5}`).join(" "),
        line: { color: paper, width: 2.5 } });
      if (this.place !== null) {
        const [i, j] = [Math.floor(this.place / this.columns), this.place % this.columns];
        shapes.push({ type: "rect", x0: j - 0.5, x1: j + 0.5, y0: i - 0.5, y1: i + 0.5, line: { color: ink, width: 2.5 } });
      }
      return shapes;
    }

    // --- by keyboard ------------------------------------------------------------------------------------------------
    key(event) {
      const last = this.columns * Math.max(this.rows, 1) - 1;
      const down = this.rows ? this.columns : 1;
      const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -down, ArrowDown: down, Home: -Infinity, End: Infinity };
      if (event.key === "Escape") { this.place = null; this.say(HINT, true); this.draw(); return; }
      if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const to = this.place === null ? (event.key === "End" ? last : 0) : this.place + steps[event.key];
      this.place = Math.min(last, Math.max(0, to));
      this.say(this.tell(this.place));
      this.draw();
    }
  }

  function wrapped(text) {
    const lines = [""];
    for (const word of text.split(" ")) {
      if (lines.at(-1) && lines.at(-1).length + word.length > 46) lines.push("");
      lines[lines.length - 1] += (lines.at(-1) ? " " : "") + word;
    }
    return lines.map(plain).join("<br>");
  }

  function faded(hex, share) {
    const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `rgba(${parts.join(",")},${share})`;
  }

  function drawing(parts) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 24 12");
    svg.setAttribute("aria-hidden", "true");
    for (const [tag, settings] of parts) {
      const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(settings)) made.setAttribute(name, value);
      svg.append(made);
    }
    return svg;
  }

  const MARKERS = { circle: "M16 6a4 4 0 1 1-8 0a4 4 0 1 1 8 0z", square: "M8.5 2.5h7v7h-7z", "triangle-down": "M8 3h8l-4 7z",
    "triangle-up": "M8 9h8l-4-7z", diamond: "M12 1.5l4.5 4.5l-4.5 4.5l-4.5-4.5z", x: "M9 2l3 3l3-3l1 1l-3 3l3 3l-1 1l-3-3l-3 3l-1-1l3-3l-3-3z",
    pentagon: "M12 1.5l4.5 3.3l-1.7 5.2h-5.6l-1.7-5.2z", cross: "M10.7 2h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    star: "M12 1l1.5 3.5l3.8.3l-2.9 2.5l.9 3.7l-3.3-2l-3.3 2l.9-3.7l-2.9-2.5l3.8-.3z", "triangle-left": "M15 2v8l-7-4z", "triangle-right": "M9 2v8l7-4z" };

  const swatch = (line) => drawing([["path", { d: "M0 6H24", stroke: colour(line), "stroke-width": 1.6, "stroke-dasharray": line.dash === "dash" ? "4 2" : "none" }],
    ["path", { d: MARKERS[line.marker] || MARKERS.circle, fill: colour(line) }]]);
  const dash = (i) => drawing([["path", { d: "M0 6H24", stroke: "currentColor", "stroke-width": 1.4, "stroke-dasharray": i ? "4 2" : "none" }]]);

  // --- the page -------------------------------------------------------------------------------------------------------
  const figures = [...document.querySelectorAll("figure.chart")].map((element, i) => new Figure(element, charts[i]));
  const near = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
    near.unobserve(entry.target);
    const figure = figures.find((one) => one.element === entry.target);
    if (!figure.drawn) figure.draw();
  }), { rootMargin: "800px" });
  const again = () => figures.filter((figure) => figure.drawn).forEach((figure) => { figure.build(); figure.draw(); });
  if (figures.length) {
    figures[0].draw();
    performance.mark("first-plot");
  }
  figures.forEach((figure) => near.observe(figure.element));

  let width = document.documentElement.clientWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    if (document.documentElement.clientWidth === width || printing) return;
    width = document.documentElement.clientWidth;
    clearTimeout(waiting);
    waiting = setTimeout(again, 100);
  });
  night.addEventListener("change", again);

  const opened = new Set();
  function paper(on) {
    if (on === printing) return;
    printing = on;
    for (const details of document.querySelectorAll("details")) {
      if (on && !details.open) { opened.add(details); details.open = true; }
      else if (!on && opened.delete(details)) details.open = false;
    }
    figures.forEach((figure) => { figure.build(); figure.draw(); });
  }
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));
  matchMedia("print").addEventListener("change", (event) => paper(event.matches));
})();

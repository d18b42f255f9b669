"use strict";

// Figures: each is drawn when it comes near the screen, and drawn again in the colors of another theme.
const figures = (() => {
  const parts = JSON.parse(document.getElementById("figures-data").textContent);
  const isTouch = matchMedia("(pointer: coarse)").matches;
  const canHover = matchMedia("(hover: hover)").matches;
  const drawn = new Map(); // id -> the element that plotly drew into
  const waiting = new Set(); // ids of figures that are near the screen and not drawn yet
  const hiddenArms = new Set(); // "arm:3": hidden in every figure
  const hiddenNames = new Map(); // id of a figure -> names of traces that are hidden in it alone
  const COORDINATES = new Set(["x", "y", "z", "base", "text", "customdata", "hovertext", "width"]);
  const CONFIG = {
    responsive: true,
    displaylogo: false,
    displayModeBar: canHover ? "hover" : false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };

  // Copy a part of a figure with colors of the theme in place of placeholders. Numbers are shared, not copied.
  function themed(value, key = "") {
    if (typeof value === "string") {
      return /^(arm|series|part|scale|theme):/.test(value) ? theme.color(value, key === "fillcolor" ? 0.16 : 1) : value;
    }
    if (value === null || typeof value !== "object") return value;
    if (Array.isArray(value)) return value.map((item) => themed(item, key));
    const copy = {};
    for (const [name, item] of Object.entries(value)) copy[name] = COORDINATES.has(name) ? item : themed(item, name);
    return copy;
  }

  function colorsOf(trace) {
    const colors = [trace.line?.color, trace.marker?.color, trace.fillcolor, trace.error_y?.color];
    return colors.filter((color) => typeof color === "string");
  }

  // Return the arm that a trace belongs to, as in "arm:3"; null: none.
  function armOf(trace) {
    return colorsOf(trace).find((color) => color.startsWith("arm:")) ?? null;
  }

  // Dash what belongs to the ninth arm or series and later ones, which have the hues of the first eight.
  function dashOf(trace) {
    const color = colorsOf(trace).find((own) => /^(arm|series):/.test(own));
    if (trace.line?.dash !== undefined || color === undefined) return trace.line?.dash;
    const number = Number(color.split(":")[1]);
    return ["solid", "dash", "dot"][Math.floor(number / 8) % 3];
  }

  function isShown(id, trace) {
    const arm = armOf(trace);
    return !(arm && hiddenArms.has(arm)) && !hiddenNames.get(id)?.has(trace.name);
  }

  function axis() {
    return {
      automargin: true,
      gridcolor: theme.variable("grid"),
      linecolor: theme.variable("rule"),
      tickcolor: theme.variable("rule"),
      tickfont: { size: 11.5, color: theme.variable("muted") },
      title: { font: { size: 12, color: theme.variable("muted") }, standoff: 10 },
      zerolinecolor: theme.variable("rule"),
      zerolinewidth: 1,
    };
  }

  // Return what figures have in common as a plotly template, which their own layout overrides.
  function template() {
    const steps = [0, 1, 2, 3, 4, 5, 6, 7];
    const sequential = [0, 1, 2, 3].map((i) => [i / 3, theme.variable(`heat-${i}`)]);
    const colorbar = { outlinewidth: 0, thickness: 10, tickfont: { size: 11, color: theme.variable("muted") } };
    const paper = theme.variable("paper");
    return {
      layout: {
        font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: theme.variable("ink") },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        colorway: steps.map((i) => theme.variable(`part-${i}`)),
        colorscale: { sequential },
        hoverlabel: {
          align: "left",
          bgcolor: paper,
          bordercolor: theme.variable("rule"),
          font: { color: theme.variable("ink") },
        },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.variable("muted"), activecolor: theme.variable("ink") },
        hovermode: "closest",
        bargap: 0.25,
        xaxis: axis(),
        yaxis: axis(),
      },
      data: { heatmap: [{ colorscale: sequential, colorbar }], bar: [{ marker: { line: { width: 0 } } }] },
    };
  }

  function layoutOf(part) {
    const layout = {
      autosize: true,
      height: 320,
      margin: { l: 48, r: 12, t: 14, b: 42 },
      showlegend: false,
      template: template(),
      ...themed(part.layout),
    };
    if (isTouch) layout.dragmode = false; // so that a finger scrolls the page
    return layout;
  }

  function tracesOf(id) {
    return parts[id].traces.map((trace) => {
      const copy = { ...themed(trace), visible: isShown(id, trace) };
      const dash = dashOf(trace);
      if (dash !== undefined && trace.type !== "bar") copy.line = { ...copy.line, dash };
      return copy;
    });
  }

  function draw(id) {
    const element = document.getElementById(`${id}-plot`);
    drawn.set(id, element);
    return Plotly.react(element, tracesOf(id), layoutOf(parts[id]), CONFIG);
  }

  function redraw() {
    for (const id of drawn.keys()) draw(id);
  }

  function toggle(id, trace, button) {
    const arm = armOf(trace);
    const own = hiddenNames.get(id) ?? new Set();
    hiddenNames.set(id, own);
    const set = arm ? hiddenArms : own;
    const key = arm ?? trace.name;
    if (set.has(key)) set.delete(key);
    else set.add(key);
    const same = arm ? document.querySelectorAll(`.legend button[data-arm="${arm}"]`) : [button];
    same.forEach((other) => other.setAttribute("aria-pressed", String(!set.has(key))));
    for (const other of arm ? drawn.keys() : [id]) {
      const visible = parts[other].traces.map((one) => isShown(other, one));
      if (drawn.has(other)) Plotly.restyle(drawn.get(other), { visible });
    }
  }

  function swatch(trace, index) {
    const element = document.createElement("span");
    const color = armOf(trace) ?? trace.line?.color ?? trace.marker?.color ?? `part:${index}`;
    element.className = `swatch ${trace.type === "bar" ? "block" : (dashOf(trace) ?? "")}`;
    if (typeof color === "string") element.style.setProperty("--swatch", theme.cssColor(color));
    return element;
  }

  // List the traces that have a name, each once, as buttons that hide and show them.
  function buildLegend(id) {
    const list = document.getElementById(`${id}-legend`);
    const seen = new Set();
    const hasEntry = (trace) => trace.name && trace.showlegend !== false && trace.type !== "heatmap";
    const named = parts[id].traces.filter(hasEntry);
    for (const trace of named) {
      const key = armOf(trace) ?? trace.name;
      if (seen.has(key)) continue;
      seen.add(key);
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      if (armOf(trace)) button.dataset.arm = armOf(trace);
      button.append(swatch(trace, parts[id].traces.indexOf(trace)), trace.name);
      button.addEventListener("click", () => toggle(id, trace, button));
      const item = document.createElement("li");
      item.append(button);
      list.append(item);
    }
    list.hidden = seen.size < 2;
  }

  // Draw one figure of those that are near the screen, then let the browser show it before the next one.
  function drawNext() {
    const [id] = waiting;
    if (id === undefined) return; // scrolled away meanwhile
    draw(id);
    waiting.delete(id);
    if (waiting.size > 0) setTimeout(drawNext);
  }

  const near = new IntersectionObserver(
    (entries) => {
      const isIdle = waiting.size === 0;
      for (const entry of entries) {
        const id = entry.target.dataset.figure;
        if (entry.isIntersecting && !drawn.has(id)) waiting.add(id);
        else waiting.delete(id);
      }
      if (isIdle && waiting.size > 0) setTimeout(drawNext);
    },
    { rootMargin: "300px" },
  );

  for (const element of document.querySelectorAll("figure[data-figure]")) {
    const id = element.dataset.figure;
    const height = parts[id].layout.height ?? 320;
    document.getElementById(`${id}-plot`).style.minHeight = `${height}px`;
    buildLegend(id);
    near.observe(element);
  }
  theme.onChange(redraw);
  addEventListener("beforeprint", () => Object.keys(parts).forEach((id) => drawn.has(id) || draw(id)));

  return { parts };
})();

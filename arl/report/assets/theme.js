"use strict";

// Theme: as the system says, until the reader chooses. Colors are those of theme.css.
const theme = (() => {
  const CHOICES = ["auto", "light", "dark"];
  const HUES = new Set(["arm", "series", "part"]);
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const probe = document.createElement("span");
  const listeners = [];
  const known = new Map(); // name of a variable -> its color in the theme that is shown
  let choice = 0;

  probe.hidden = true;
  document.body.append(probe);

  // Return what a CSS variable stands for in the theme that is shown, as "rgb(r, g, b)".
  function variable(name) {
    if (!known.has(name)) {
      probe.style.color = `var(--${name})`;
      known.set(name, getComputedStyle(probe).color);
    }
    return known.get(name);
  }

  // Return the variable of "arm:3" or "part:2"; a series has the hues of arms.
  function hue(kind, name) {
    return `${kind === "part" ? "part" : "arm"}-${Number(name) % 8}`;
  }

  function channels(name) {
    return variable(name).match(/[\d.]+/g).slice(0, 3).map(Number);
  }

  // Return the color at a place between 0 and 1 of the strong sequence.
  function onScale(fraction) {
    const at = Math.min(Math.max(fraction, 0), 1) * 7;
    const from = Math.min(Math.floor(at), 6);
    const before = channels(`scale-${from}`);
    const after = channels(`scale-${from + 1}`);
    const mixed = before.map((value, i) => Math.round(value + (after[i] - value) * (at - from)));
    return `rgb(${mixed.join(", ")})`;
  }

  // Replace "arm:3", "series:1", "part:2", "scale:0.5" and "theme:muted" by a color; other values stay as they are.
  function color(value, opacity = 1) {
    const [kind, name] = value.split(":");
    if (kind === "scale") return onScale(Number(name));
    if (kind === "theme") return variable(name);
    if (!HUES.has(kind)) return value;
    const own = channels(hue(kind, name));
    return opacity === 1 ? `rgb(${own.join(", ")})` : `rgba(${own.join(", ")}, ${opacity})`;
  }

  // Return the CSS value of a placeholder, which follows the theme by itself.
  function cssColor(value) {
    const [kind, name] = value.split(":");
    if (HUES.has(kind)) return `var(--${hue(kind, name)})`;
    if (kind === "theme") return `var(--${name})`;
    return kind === "scale" ? `var(--scale-${Math.round(Number(name) * 7)})` : value;
  }

  function announce() {
    known.clear();
    listeners.forEach((listener) => listener());
  }

  function choose(next) {
    choice = next;
    const name = CHOICES[choice];
    if (name === "auto") root.removeAttribute("data-theme");
    else root.dataset.theme = name;
    button.textContent = `Theme: ${name}`;
    announce();
  }

  button.addEventListener("click", () => choose((choice + 1) % CHOICES.length));
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", announce);

  return { color, cssColor, variable, onChange: (listener) => listeners.push(listener) };
})();

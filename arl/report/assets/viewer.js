"use strict";

// Viewer: a list of trajectories that can be searched and filtered. detail.js shows the selected one.
(() => {
  const source = document.getElementById("viewer-data");
  if (source === null) return;
  const data = JSON.parse(source.textContent);
  const find = (name) => document.getElementById(`viewer-${name}`);
  const list = find("list");
  const detail = trajectoryDetail(data, find);
  let shown = []; // places in data.trajectories that pass the filters
  let selected = -1;

  function element(tag, className, text) {
    const made = document.createElement(tag);
    made.className = className;
    made.textContent = text;
    return made;
  }

  function outcomeOf(trajectory) {
    if (trajectory.right === null) return "unscored";
    return trajectory.right ? "right" : "wrong";
  }

  function buildItem(trajectory, place) {
    const item = element("li", "", "");
    const run = data.runs[trajectory.run];
    const outcome = outcomeOf(trajectory);
    const dot = element("span", "dot", "");
    dot.style.setProperty("--swatch", theme.cssColor(`arm:${run.arm}`));
    dot.title = run.label;
    const mark = element("span", `mark-${outcome}`, { right: "✓", wrong: "✗", unscored: "·" }[outcome]);
    mark.setAttribute("aria-label", outcome);
    mark.setAttribute("role", "img");
    const when = trajectory.step === null ? trajectory.fate : `step ${trajectory.step}`;
    const size = `${trajectory.numTokens} tok${trajectory.age === null ? "" : ` · age ${trajectory.age}`}`;
    const snippet = visible(trajectory.response.slice(0, 120)).replaceAll(/\s+/g, " ");
    item.append(dot, mark, element("span", "", when), element("span", "age", size), element("span", "snippet", snippet));
    item.id = `trajectory-${place}`;
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", "false");
    item.addEventListener("click", () => select(place));
    return item;
  }

  const items = data.trajectories.map(buildItem);
  list.append(...items);
  const haystacks = data.trajectories.map((own) =>
    [own.prompt, own.response, own.answer, own.problem].join("\n").toLowerCase(),
  );

  function fillSelect(name, options) {
    options.forEach(([value, label]) => find(name).append(new Option(label, value)));
  }

  fillSelect("fate", [...new Set(data.trajectories.map((own) => own.fate))].sort().map((fate) => [fate, fate]));
  fillSelect("run", data.runs.map((run, place) => [String(place), run.label]));

  // Return whether a value lies between two inputs, of which empty ones set no limit.
  function isWithin(value, least, most) {
    if (least === "" && most === "") return true;
    return value !== null && (least === "" || value >= Number(least)) && (most === "" || value <= Number(most));
  }

  function matches(trajectory, place, wanted) {
    return (
      haystacks[place].includes(wanted.text) &&
      (wanted.outcome === "" || wanted.outcome === outcomeOf(trajectory)) &&
      (wanted.fate === "" || wanted.fate === trajectory.fate) &&
      (wanted.run === "" || Number(wanted.run) === trajectory.run) &&
      isWithin(trajectory.step, wanted.firstStep, wanted.lastStep) &&
      isWithin(trajectory.age, wanted.leastAge, wanted.mostAge)
    );
  }

  function filter() {
    const wanted = {
      text: find("search").value.toLowerCase(),
      outcome: find("outcome").value,
      fate: find("fate").value,
      run: find("run").value,
      firstStep: find("first-step").value,
      lastStep: find("last-step").value,
      leastAge: find("least-age").value,
      mostAge: find("most-age").value,
    };
    shown = data.trajectories.flatMap((own, place) => (matches(own, place, wanted) ? [place] : []));
    const passing = new Set(shown);
    items.forEach((item, place) => (item.hidden = !passing.has(place)));
    const count = shown.length.toLocaleString("en");
    const all = data.numEpisodes.toLocaleString("en");
    find("count").textContent = `${count} of the ${items.length} shown here, which are a sample of ${all} episodes`;
    if (!passing.has(selected)) select(shown[0] ?? -1);
  }

  function select(place) {
    items[selected]?.setAttribute("aria-selected", "false");
    selected = place;
    find("detail").hidden = place < 0;
    if (place < 0) {
      list.removeAttribute("aria-activedescendant");
      return;
    }
    items[place].setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", items[place].id);
    keepInView(items[place]);
    detail.show(data.trajectories[place]);
  }

  // Scroll the list alone: scrollIntoView would move the page as well.
  function keepInView(item) {
    const top = item.offsetTop - list.offsetTop;
    if (top < list.scrollTop) list.scrollTop = top;
    const bottom = top + item.offsetHeight;
    if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight;
  }

  function move(distance) {
    if (shown.length === 0) return;
    const next = shown.indexOf(selected) + distance;
    select(shown[Math.min(Math.max(next, 0), shown.length - 1)]);
  }

  const MOVES = { ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };

  function onMoveKey(event) {
    if (event.key in MOVES) {
      event.preventDefault();
      move(MOVES[event.key]);
    }
  }

  list.addEventListener("keydown", onMoveKey);
  find("tokens").addEventListener("keydown", (event) => {
    if (event.key === "ArrowUp" || event.key === "ArrowDown") onMoveKey(event);
  });
  find("previous").addEventListener("click", () => move(-1));
  find("next").addEventListener("click", () => move(1));
  find("filters").addEventListener("input", filter);
  find("filters").addEventListener("change", filter);
  find("filters").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      find("search").focus();
    }
  });
  filter();
})();

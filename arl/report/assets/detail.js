"use strict";

// Show control characters, which have no form of their own, as the pictures that Unicode has of them.
function visible(text) {
  const picture = (character) => String.fromCharCode(character === "\u007f" ? 0x2421 : 0x2400 + character.charCodeAt(0));
  return text.replaceAll(/[\u0000-\u0008\u000b-\u001f\u007f]/g, picture);
}

// Return a number with four digits that count; a dash stands for one that does not exist.
function figure(value) {
  if (value === null || value === undefined) return "–";
  return String(Number(value.toPrecision(4))).replace("-", "\u2212");
}

// Detail: the numbers, tokens and texts of one trajectory. Everything a model wrote is set as text, never as markup.
function trajectoryDetail(data, find) {
  const pane = find("tokens");
  const coloring = find("coloring");
  let own = []; // tokens of the trajectory
  let spans = [];
  let current = -1;

  function fillList(list, entries) {
    const rows = entries.map(([name, value]) => {
      const row = document.createElement("div");
      const term = document.createElement("dt");
      const description = document.createElement("dd");
      term.textContent = name;
      description.textContent = value;
      row.append(term, description);
      return row;
    });
    list.replaceChildren(...rows);
  }

  function facts(trajectory) {
    const right = { true: "right", false: "wrong", null: "not scored" }[trajectory.right];
    const entries = [
      ["outcome", right],
      ["reward", figure(trajectory.reward)],
    ];
    if (trajectory.unshapedReward !== trajectory.reward) entries.push(["before shaping", figure(trajectory.unshapedReward)]);
    Object.entries(trajectory.parts).forEach(([name, value]) => entries.push([`reward: ${name}`, figure(value)]));
    entries.push(["advantage", trajectory.tokens.advantages === null ? figure(trajectory.advantage) : "one a token"]);
    entries.push(["fate", trajectory.fate], ["oldest token's age", figure(trajectory.age)]);
    entries.push(["tokens", String(trajectory.numTokens) + (trajectory.truncated ? ", truncated" : "")]);
    if (trajectory.error) entries.push(["error", visible(trajectory.error)]);
    return entries;
  }

  function buildToken(token) {
    const span = document.createElement("span");
    span.dataset.place = token.place;
    span.textContent = visible(token.text).replaceAll("\n", "↵\n");
    return span;
  }

  function show(trajectory) {
    const run = data.runs[trajectory.run];
    const vocabulary = run.vocabulary === null ? null : data.vocabularies[run.vocabulary];
    const step = trajectory.step === null ? "Lost" : `Step ${trajectory.step}`;
    find("title").textContent = `${step}, problem ${trajectory.problem}`;
    find("subtitle").textContent = `${run.label} · group ${trajectory.group}, sample ${trajectory.sample}`;
    fillList(find("facts"), facts(trajectory));
    find("prompt").textContent = visible(trajectory.prompt);
    find("response").textContent = visible(trajectory.response);
    find("answer").textContent = visible(trajectory.answer);
    own = tokens.unpack(trajectory, vocabulary);
    spans = own.map(buildToken);
    pane.replaceChildren(...spans);
    const leftOut = trajectory.numTokens - own.length;
    if (leftOut > 0) pane.append(`\n… ${leftOut.toLocaleString("en")} more tokens are left out of this page`);
    current = -1;
    inspect(0);
    paint();
  }

  // Give tokens the classes of the chosen scale, and show its legend.
  function paint() {
    const kind = coloring.querySelector("input:checked").value;
    const scale = tokens.scale(kind, own);
    own.forEach((token, i) => {
      spans[i].className = `token ${scale.classOf(token)}${i === current ? " current" : ""}`;
    });
    const entries = scale.legend.map((entry) => {
      const item = document.createElement("li");
      item.className = `token ${entry.name}${entry.count === 0 ? " absent" : ""}`;
      item.textContent = `${entry.label} · ${entry.count}`;
      return item;
    });
    find("scale").replaceChildren(...entries);
  }

  // Show all numbers of a token.
  function inspect(place) {
    if (place < 0 || place >= own.length) {
      if (own.length === 0) fillList(find("readout"), [["tokens", "none"]]);
      return;
    }
    spans[current]?.classList.remove("current");
    current = place;
    spans[current].classList.add("current");
    const token = own[place];
    const hasBoth = token.proximal !== null && token.behavior !== null;
    fillList(find("readout"), [
      [`token ${place + 1} of ${own.length}`, JSON.stringify(visible(token.text))],
      ["id", String(token.id)],
      ["version", token.version === null ? "not sampled" : String(token.version)],
      ["age", figure(token.age)],
      ["behavior logprob", figure(token.behavior)],
      ["proximal logprob", figure(token.proximal)],
      ["current logprob", figure(token.current)],
      [token.proximal === null ? "ratio to behavior" : "ratio to proximal", figure(token.ratio)],
      ["behavior weight", hasBoth ? figure(Math.exp(token.proximal - token.behavior)) : "–"],
      ["advantage", figure(token.advantage)],
      ["in the loss", token.isInLoss ? "yes" : "no"],
    ]);
  }

  // Scroll the tokens alone, so that the current one is seen.
  function keepInView(span) {
    const top = span.offsetTop - pane.offsetTop;
    if (top < pane.scrollTop || top + span.offsetHeight > pane.scrollTop + pane.clientHeight) {
      pane.scrollTop = top - pane.clientHeight / 2;
    }
  }

  pane.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: own.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    inspect(Math.min(Math.max(moves[event.key], 0), own.length - 1));
    if (spans[current]) keepInView(spans[current]);
  });
  for (const kind of ["pointerover", "click"]) {
    pane.addEventListener(kind, (event) => {
      const place = event.target.dataset?.place;
      if (place !== undefined) inspect(Number(place));
    });
  }
  coloring.addEventListener("change", paint);
  return { show };
}

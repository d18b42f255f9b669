"use strict";

// Tokens: unpack their numbers, and put each into a class of a color scale.
const tokens = (() => {
  const NONE = "no-value";
  const AGES = [
    [0, "0", "div-4"],
    [1, "1", "seq-0"],
    [2, "2", "seq-1"],
    [4, "3–4", "seq-2"],
    [8, "5–8", "seq-3"],
    [16, "9–16", "seq-4"],
    [Infinity, "17+", "seq-5"],
  ];
  const RATIOS = bins([0.8, 0.9, 0.97, 0.995, 1.005, 1.03, 1.1, 1.2]);
  const ADVANTAGES = bins([-2, -1, -0.5, -0.02, 0.02, 0.5, 1, 2]);

  // Return nine classes between eight edges, from one side of the middle to the other.
  function bins(edges) {
    return [...edges, Infinity].map((edge, i) => {
      const label = i === 0 ? `< ${edges[0]}` : i === 8 ? `≥ ${edges[7]}` : `${edges[i - 1]} to ${edge}`;
      return [edge, label.replaceAll("-", "\u2212"), `div-${i}`];
    });
  }

  function bytes(base64) {
    return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)).buffer;
  }

  function floats(base64) {
    return base64 === null ? null : new Float32Array(bytes(base64));
  }

  function spread(runLengths) {
    return runLengths.flatMap(([value, count]) => Array(count).fill(value));
  }

  function at(array, i) {
    return array === null || Number.isNaN(array[i]) ? null : array[i];
  }

  // Return one object for each packed token of a trajectory.
  function unpack(trajectory, vocabulary) {
    const packed = trajectory.tokens;
    const ids = new Uint32Array(bytes(packed.ids));
    const behavior = floats(packed.behaviorLogprobs);
    const proximal = floats(packed.proximalLogprobs);
    const current = floats(packed.currentLogprobs);
    const advantages = floats(packed.advantages);
    const versions = spread(packed.versions);
    const mask = spread(packed.mask);
    return Array.from(ids, (id, i) => {
      const isSampled = versions[i] >= 0;
      const isInLoss = mask[i] === 1;
      const center = at(proximal, i) ?? (isSampled ? at(behavior, i) : null);
      const now = at(current, i);
      return {
        id,
        place: i,
        text: vocabulary === null ? `${id} ` : (vocabulary[id] ?? `⟨${id}⟩`),
        version: isSampled ? versions[i] : null,
        age: isSampled && trajectory.step !== null ? trajectory.step - 1 - versions[i] : null,
        behavior: isSampled ? at(behavior, i) : null,
        proximal: at(proximal, i),
        current: now,
        ratio: now === null || center === null ? null : Math.exp(now - center),
        advantage: isInLoss ? (at(advantages, i) ?? trajectory.advantage) : null,
        isInLoss,
      };
    });
  }

  function scaleOfBins(table, key, own) {
    const hasNone = (token) => token[key] === null || Number.isNaN(token[key]);
    const classOf = (token) => (hasNone(token) ? NONE : table.find(([edge]) => inBin(key, token[key], edge))[2]);
    return finish(own, classOf, table.map(([, label, name]) => [label, name]));
  }

  // A bin ends before its edge, but one of ages with it, and the last one holds a ratio that is infinite.
  function inBin(key, value, edge) {
    return key === "age" || edge === Infinity ? value <= edge : value < edge;
  }

  function versionScale(own) {
    const versions = [...new Set(own.map((token) => token.version).filter((version) => version !== null))];
    versions.sort((a, b) => a - b);
    const name = (version) => {
      const place = versions.indexOf(version);
      return `seq-${versions.length === 1 ? 2 : Math.round((place * 5) / (versions.length - 1))}`;
    };
    const classOf = (token) => (token.version === null ? NONE : name(token.version));
    const labels = versions.map((version) => [`version ${version}`, name(version), version]);
    const scale = finish(own, classOf, labels);
    scale.legend.forEach((entry, i) => {
      if (i < versions.length) entry.count = own.filter((token) => token.version === versions[i]).length;
    });
    return scale;
  }

  function maskScale(own) {
    const classOf = (token) => (token.isInLoss ? "seq-3" : NONE);
    return finish(own, classOf, [["in the loss", "seq-3"]], "not in the loss");
  }

  // Add to each class of a legend how many of the tokens are in it.
  function finish(own, classOf, labels, none = "no value") {
    const counts = new Map();
    own.forEach((token) => counts.set(classOf(token), (counts.get(classOf(token)) ?? 0) + 1));
    const legend = labels.map(([label, name]) => ({ label, name, count: counts.get(name) ?? 0 }));
    if (counts.has(NONE)) legend.push({ label: none, name: NONE, count: counts.get(NONE) });
    return { classOf, legend };
  }

  // Return a function from a token to its class, and the legend of the classes.
  function scale(kind, own) {
    if (kind === "version") return versionScale(own);
    if (kind === "mask") return maskScale(own);
    const table = { age: AGES, ratio: RATIOS, advantage: ADVANTAGES }[kind];
    return scaleOfBins(table, kind, own);
  }

  return { unpack, scale };
})();

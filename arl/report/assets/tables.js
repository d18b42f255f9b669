"use strict";

// Tables: the header cells sort, by number where a column has numbers. Contents: the link of the section in view is marked.
(() => {
  // Return the first number in a cell, or null. "−3.1 [1.2, 5.0]" is −3.1.
  function number(text) {
    const found = text.replaceAll("\u2212", "-").replaceAll(",", "").match(/-?\d+(\.\d+)?(e[+-]?\d+)?/i);
    return found === null ? null : Number(found[0]);
  }

  // Compare two cells. Those without a number come last, whichever the direction.
  function compare(one, other, isNumeric, direction) {
    if (!isNumeric) return direction * one.localeCompare(other, undefined, { numeric: true });
    const [a, b] = [number(one), number(other)];
    if (a === null || b === null) return (a === null) - (b === null);
    return direction * (a - b);
  }

  function sort(header) {
    const table = header.closest("table");
    const text = (row) => row.cells[column].textContent;
    const isAscending = header.getAttribute("aria-sort") !== "ascending";
    const isNumeric = header.classList.contains("number");
    const column = header.cellIndex;
    const body = table.tBodies[0];
    const rows = [...body.rows];
    rows.sort((a, b) => compare(text(a), text(b), isNumeric, isAscending ? 1 : -1));
    body.append(...rows);
    table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", isAscending ? "ascending" : "descending");
  }

  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => sort(button.closest("th")));
  }

  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  const current = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        links.forEach((link) => link.removeAttribute("aria-current"));
        links.get(entry.target.id)?.setAttribute("aria-current", "true");
      }
    },
    { rootMargin: "0px 0px -70% 0px" },
  );
  document.querySelectorAll("main section").forEach((section) => current.observe(section));
})();

"use strict";

// Theme: follows the system until the button changes it. The choice is not stored.
const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
const toggle = document.getElementById("theme");
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
const name = () => { toggle.textContent = isDark() ? "Light" : "Dark"; toggle.ariaLabel = `Change to ${isDark() ? "light" : "dark"} theme`; };
toggle.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); });
dark.addEventListener("change", name);
name();

// Sorting: a click on a header sorts by its column, best first; a second click reverses. Missing values stay last.
const number = text => text === undefined || text === "" ? NaN : Number(text);
const words = new Intl.Collator(undefined, { numeric: true });

function sort(table, column, order) {
  const sign = order === "ascending" ? 1 : -1, body = table.tBodies[0];
  const rows = [...body.rows].map(row => ({ row, value: row.cells[column].dataset.value }));
  rows.sort((a, b) => {
    if (column === 0) return sign * words.compare(a.value, b.value);
    const x = number(a.value), y = number(b.value);
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
    return x === y ? 0 : sign * (x < y ? -1 : 1);
  });
  body.append(...rows.map(entry => entry.row));
  for (const head of table.tHead.rows[0].cells) head.removeAttribute("aria-sort");
  table.tHead.rows[0].cells[column].setAttribute("aria-sort", order);
}

for (const table of document.querySelectorAll("table")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = head.querySelector("button");
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort"), other = now === "ascending" ? "descending" : "ascending";
      sort(table, column, now ? other : button.dataset.first);
    });
  });
}

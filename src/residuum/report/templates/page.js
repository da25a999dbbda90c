// What can be done with the page: themes, choices, examples, tables, print.
const $all = (selector, root) => Array.from((root || document).querySelectorAll(selector));

function setTheme(theme) {
  const dark = theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.documentElement.dataset.chosen = theme;
  document.getElementById("theme").textContent = `theme: ${theme}`;
}
setTheme("auto");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(document.documentElement.dataset.chosen));
document.getElementById("theme").addEventListener("click", () => {
  const themes = ["auto", "light", "dark"];
  setTheme(themes[(themes.indexOf(document.documentElement.dataset.chosen) + 1) % 3]);
});

for (const slot of $all(".slot")) slot.append(chart(JSON.parse(slot.querySelector("script").textContent)));

const unpacked = new Map();
async function unpack(id) {
  if (!unpacked.has(id)) {
    const bytes = Uint8Array.from(atob(document.getElementById(`pack-${id}`).textContent), (c) => c.charCodeAt(0));
    const text = new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    unpacked.set(id, JSON.parse(await text));
  }
  return unpacked.get(id);
}

const BLOCKS = {
  chart: (block) => chart(block),
  table: (block) => { const box = plainTable(block); box.classList.add("wide"); return box; },
  text: (block) => { const box = html("div", { class: "wide" }); for (const line of block.text) { const p = html("p", {}, box, `${line} `); if (block.source) html("a", { href: `#${block.source}` }, p, "run"); } return box; },
  examples: (block) => examples(block),
};

const begun = $all(".choice").map((box) => {
  const select = box.querySelector("select"), stage = box.querySelector(".stage");
  const show = async () => {
    const wanted = select.value, blocks = await unpack(`${box.dataset.choice}-${wanted}`);
    const nodes = await Promise.all(blocks.map((block) => BLOCKS[block.block](block)));
    if (select.value === wanted) stage.replaceChildren(...nodes);
    box.dataset.shown = wanted;
  };
  select.addEventListener("change", show);
  return show();
});

async function examples(block) {
  const texts = await unpack(block.texts), first = await unpack(block.first);
  const box = html("div", { class: "example wide", role: "group", "aria-label": `Examples of ${block.model}` });
  const tools = html("div", { class: "tools" }, box), label = html("label", {}, tools, "example "), select = html("select", { "data-example": "" }, label);
  texts.forEach((t, i) => html("option", { value: i }, select, `${t[0]}: ${t[1]}`));
  const before = html("button", { type: "button" }, tools, "previous"), after = html("button", { type: "button" }, tools, "next");
  const find = html("input", { type: "search", "aria-label": "find an example" });
  html("label", {}, tools, "find ").append(find);
  const body = html("div", {}, box);
  const show = () => {
    const i = Number(select.value), [idx, question, prefix, entity, reference, full, retain] = texts[i];
    body.replaceChildren();
    html("h3", {}, body, question);
    html("p", {}, body, `UDS ${pad(block.uds[i])}${block.uds[i] === null ? " (no layer held anything)" : ""}; knowledge in layers ${block.held[i].join(", ") || "none"}`);
    const answer = html("blockquote", { class: "answer" }, body), whole = `${prefix}${reference}`, at = entity ? whole.indexOf(entity, prefix.length) : -1;
    if (at < 0) answer.textContent = whole;
    else { answer.append(whole.slice(0, at)); html("mark", {}, answer, entity); answer.append(whole.slice(at + entity.length)); }
    const said = [["full continues", full], ["retain continues", retain], [`${block.model} says`, block.said && block.said[i]]].filter((pair) => pair[1]);
    for (const [who, text] of said) { html("strong", {}, body, who); html("blockquote", { class: "said" }, body, text); }
    const held = new Set(block.held[i]);
    const rows = [["S1 (retain)", first[i]], ["S2 (unlearned)", block.second[i]]];
    const scroll = html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "per layer" }, body), table = html("table", { class: "deltas" }, scroll);
    html("caption", {}, table, `${block.what} per layer; layers that held the knowledge are bold`);
    const head = html("tr", {}, html("thead", {}, table)), lines = html("tbody", {}, table);
    html("th", { scope: "col" }, head, "layer");
    for (const layer of block.layers) html("th", { scope: "col" }, head, layer);
    for (const [name, values] of rows) {
      const line = html("tr", {}, lines);
      html("th", { scope: "row" }, line, name);
      values.forEach((value, l) => html("td", { class: held.has(block.layers[l]) ? "held" : "" }, line, pad(value)));
    }
  };
  const move = (step) => { select.selectedIndex = (select.selectedIndex + step + texts.length) % texts.length; show(); };
  before.addEventListener("click", () => move(-1));
  after.addEventListener("click", () => move(1));
  select.addEventListener("change", show);
  find.addEventListener("input", () => {
    const wanted = find.value.toLowerCase(), i = texts.findIndex((t) => t.some((part) => String(part).toLowerCase().includes(wanted)));
    if (wanted && i >= 0) { select.value = i; show(); }
  });
  show();
  return box;
}

for (const input of $all("[data-cards]")) {
  const cards = $all(".card", input.closest("section")), count = input.closest(".tools").querySelector(".count");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const card of cards) card.hidden = !words.every((word) => card.dataset.text.includes(word));
    count.textContent = `${cards.filter((card) => !card.hidden).length} of ${cards.length}`;
  });
}

const cellText = (cell) => (cell.querySelector("span") || cell.firstChild || cell).textContent.trim();

function benchmark(box) {
  const table = box.querySelector("table"), heads = $all("thead th", table), body = table.tBodies[0], rows = Array.from(body.rows), count = box.querySelector(".count");
  const search = box.querySelector("[data-search]"), filters = $all("[data-filter]", box).map((select) => ({ select, column: heads.findIndex((head) => head.dataset.key === select.dataset.key) }));
  for (const { select, column } of filters) {
    const values = [...new Set(rows.map((row) => cellText(row.cells[column])))].filter((value) => value !== "–");
    values.sort((a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b)).forEach((value) => html("option", { value }, select, value));
  }
  const choose = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((w) => cellText(row.cells[0]).toLowerCase().includes(w)) || filters.some(({ select, column }) => select.value && cellText(row.cells[column]) !== select.value);
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} models`;
  };
  for (const input of [search, ...filters.map((f) => f.select)]) input.addEventListener("input", choose);
  choose();
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") === "descending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => { const cell = row.cells[column]; return cell.dataset.v !== undefined ? Number(cell.dataset.v) : cellText(cell); };
    const sign = up ? 1 : -1, none = (value) => value === "–" || value === "";
    rows.sort((a, b) => {
      const x = key(a), y = key(b);
      if (none(x) || none(y)) return none(x) - none(y);
      return sign * (typeof x === "number" && typeof y === "number" ? x - y : !isNaN(x) && !isNaN(y) ? x - y : String(x).localeCompare(String(y)));
    });
    body.append(...rows);
  }));
  const toggle = (input) => { for (const row of [table.tHead.rows[0], ...rows]) row.cells[Number(input.dataset.column)].classList.toggle("off", !input.checked); };
  const boxes = $all("[data-column]", box);
  for (const input of boxes) input.addEventListener("change", () => toggle(input));
  const set = (checked) => boxes.forEach((input) => { input.checked = checked; toggle(input); });
  box.querySelector("[data-all]").addEventListener("click", () => set(true));
  box.querySelector("[data-none]").addEventListener("click", () => set(false));
  box.querySelector("[data-intervals]").addEventListener("change", (event) => table.classList.toggle("with-ci", event.target.checked));
  body.addEventListener("click", (event) => { const cell = event.target.closest("td[data-run]"); if (cell && !event.target.closest("a")) location.hash = cell.dataset.run; });
  for (const button of $all("[data-export]", box)) button.addEventListener("click", () => {
    const shown = heads.map((head, i) => i).filter((i) => !heads[i].classList.contains("off"));
    const lines = [heads, ...Array.from(body.rows).filter((row) => !row.hidden).map((row) => Array.from(row.cells))].map((cells) => shown.map((i) => cellText(cells[i])));
    save(button.dataset.export === "csv" ? asCsv(lines) : asLatex(lines), `${box.dataset.table}.${button.dataset.export}`);
  });
}

// A text that begins like a formula would be run by a spreadsheet.
const csvCell = (text) => (/^[=+@\t\r]|^-(?!\d+(\.\d+)?(e[-+]?\d+)?$)/.test(text) ? `"'${text.replaceAll('"', '""')}"` : /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text === "–" ? "" : text);
const asCsv = (lines) => lines.map((line) => line.map(csvCell).join(",")).join("\n") + "\n";
const TEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "–": "--" };
const texCell = (text) => text.replace(/[\\~^–]|[&%$#_{}]/g, (sign) => TEX[sign] || `\\${sign}`);
function asLatex(lines) {
  const [head, ...rows] = lines.map((line) => line.map(texCell).join(" & ") + " \\\\");
  return [`\\begin{tabular}{l${"r".repeat(lines[0].length - 1)}}`, "\\toprule", head, "\\midrule", ...rows, "\\bottomrule", "\\end{tabular}", ""].join("\n");
}

function save(text, name) {
  const link = html("a", { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

for (const box of $all(".table")) if (box.querySelector(".tools")) benchmark(box);

// On paper nothing can be scrolled: what is wider than the sheet is drawn smaller.
function fitTables(printing) {
  for (const box of $all(".scroll")) {
    const table = box.querySelector("table");
    if (!table) continue;
    table.style.zoom = "";
    const room = Math.min(box.clientWidth || 1040, 1040);
    if (printing && table.scrollWidth > room) table.style.zoom = Math.max(0.2, room / table.scrollWidth);
  }
}
matchMedia("print").addEventListener("change", (event) => fitTables(event.matches));
addEventListener("beforeprint", () => fitTables(true));
addEventListener("afterprint", () => fitTables(false));
Promise.all(begun).then(() => { document.documentElement.dataset.ready = "yes"; });

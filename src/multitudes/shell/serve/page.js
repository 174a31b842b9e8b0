"use strict";

const at = id => document.getElementById(id), root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)"), toggle = at("theme");
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
const name = () => { toggle.textContent = isDark() ? "Light" : "Dark"; toggle.ariaLabel = `Change to ${isDark() ? "light" : "dark"} theme`; };
toggle.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); });
dark.addEventListener("change", name);
name();

// What a visitor or a file says is only ever set as text, never as HTML.
function made(tag, text, kind) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
}

let about = {}, token = "";
const MOST = 24, FEW = 6;
const headers = () => token ? { Authorization: `Bearer ${token}` } : {};
const percent = value => value < 1 && value > 0.9995 ? "> 99.9 %" : value > 0 && value < 0.0005 ? "< 0.1 %" : `${Number((100 * value).toFixed(1))} %`;
const number = value => Number.isInteger(value) ? String(value) : Number(value.toPrecision(4)).toString();
const labelled = index => about.labels && about.labels[index] !== undefined ? about.labels[index]
  : about.task === "binary" ? ["no", "yes"][index] : `class ${index}`;
const shape = value => Array.isArray(value) ? [value.length, ...shape(value[0])] : [];
const mean = value => Array.isArray(value) ? value.reduce((sum, one) => sum + mean(one), 0) / value.length : Number(value);
const few = values => values.slice(0, FEW).map(number).join(", ") + (values.length > FEW ? `, … (${values.length} targets)` : "");
const words = key => (key[0].toUpperCase() + key.slice(1)).replaceAll("_", " ");

function say(text) { at("error").textContent = text; at("error").hidden = !text; }

async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  const body = await response.json();
  if (response.status === 401) at("locked").hidden = false;
  if (!response.ok) throw new Error(body.detail || `the server answers ${response.status}`);
  return body;
}

async function refresh() {
  try { about = await ask("/health"); } catch (error) { at("about").textContent = `The server does not answer: ${error.message}`; return; }
  if (!about.file) { at("locked").hidden = false; at("pasting").hidden = true; at("about").textContent = token ? "This is not the token." : "This server asks for a token."; return; }
  at("locked").hidden = true;
  at("pasting").hidden = false;
  document.title = at("file").textContent = about.file;
  const whole = { classes: "classification", binary: "yes or no", multilabel: "several labels", gaussian: "regression with variances", regression: "regression" };
  const count = about.members ? `${about.members} member${about.members > 1 ? "s" : ""}` : "An exported network", kind = about.method ? `${about.method.split("(")[0]}, ` : "";
  at("about").textContent = `${kind}${count}${about.task ? `: ${whole[about.task] || about.task}` : ""}.`;
  const watch = about.reference, lines = [...about.notes];
  if (watch && watch.rows) lines.push(`${percent(watch.rate)} of the last ${watch.rows} rows are unlike the training data by their ${watch.score.replaceAll("_", " ")}, ${percent(watch.expected_rate)} would be usual${watch.alarm ? ": alarm" : ""}`);
  at("notes").textContent = lines.map(line => line[0].toUpperCase() + line.slice(1) + ".").join(" ");
  const images = about.inputs.length === 1 && about.inputs[0].image;
  if (at("drop").hidden && !images) at("pasting").open = true;
  at("drop").hidden = !images;
  const forms = about.inputs.map(one => `${one.name}: ${one.dtype} [${one.shape.map(size => size ?? "any").join(", ")}]`);
  at("form-of-rows").textContent = `One row, several rows, or an object of rows by input, as JSON. A row is ${forms.join("; ")}`;
}

const zeros = (sizes, value) => sizes.length ? Array.from({ length: sizes[0] ?? 4 }, () => zeros(sizes.slice(1), value)) : value;
const example = one => zeros(one.shape, one.dtype === "bool" ? false : 0);
const depth = value => Array.isArray(value) ? 1 + depth(value[0]) : 0;
function batched(value) {  // one row, or several
  if (!Array.isArray(value)) return value;
  return depth(value) === about.inputs[0].shape.length ? [value] : value;
}

at("example").addEventListener("click", () => {
  const rows = about.inputs.length === 1 ? example(about.inputs[0]) : Object.fromEntries(about.inputs.map(one => [one.name, [example(one)]]));
  at("rows").value = JSON.stringify(rows);
});

function bar(text, share, value, kind) {
  const line = made("li", undefined, kind);
  line.style.setProperty("--share", Math.max(0, Math.min(1, share)).toFixed(4));
  line.append(made("span", text), made("b", value));
  line.title = `${text}: ${value}`;
  return line;
}

function part(title, body) { const box = made("div"); box.append(made("h3", title), body); return box; }

function distribution(probs) { return typeof probs === "number" ? [1 - probs, probs] : probs.length === 1 ? [1 - probs[0], probs[0]] : probs; }

function probabilities(values, most = 6) {
  const list = made("ol", undefined, "votes"), order = values.map((_, index) => index).sort((a, b) => values[b] - values[a]);
  order.slice(0, most).forEach((index, place) => list.append(bar(labelled(index), values[index], percent(values[index]), place ? "" : "top")));
  return list;
}

function votes(members, chosen) {
  const list = made("ol", undefined, "votes");
  members.map(distribution).forEach((values, member) => {
    const best = values.indexOf(Math.max(...values));
    list.append(bar(`${member + 1}  ${labelled(best)}`, values[best], percent(values[best]), best === chosen ? "top" : "other"));
  });
  return list;
}

function measures(answer, row) {
  const list = made("dl", undefined, "measures"), watch = about.reference;
  for (const key of Object.keys(answer)) {
    if (["probs", "label", "notes", "abstain", "mean"].includes(key) || key.startsWith("member_")) continue;
    const own = [answer[key][row]].flat(4), value = mean(own);
    const several = answer.mean && own.length > 1;  // each has its own unit: their mean would say nothing
    list.append(made("dt", `${words(key)}${own.length > 1 && !several ? `, mean of ${own.length}` : ""}`), made("dd", several ? few(own) : number(value)));
    if (watch && watch.score === key) {
      const low = key === "confidence", beyond = low ? value < watch.line : value > watch.line;
      list.append(made("dd", `${beyond ? "Unusual" : "Usual"}: of data like that of training, ${percent(watch.expected_rate)} is ${low ? "below" : "above"} ${number(watch.line)}`, "why"));
    }
  }
  return list;
}

function means(values) {
  const list = made("ol", undefined, "votes"), low = Math.min(...values), high = Math.max(...values);
  values.forEach((value, member) => list.append(bar(`${member + 1}`, high > low ? 0.1 + 0.9 * (value - low) / (high - low) : 0.5, number(value))));
  return list;
}

function targets(answer, row) {  // what is said of each target, as text
  const values = [answer.mean[row]].flat(4), spreads = answer.variance && [answer.variance[row]].flat(4);
  return values.map((value, index) => `${number(value)}${spreads ? ` ± ${number(Math.sqrt(spreads[index]))}` : ""}`);
}

function heading(answer, row) {
  const box = made("div"), probs = answer.probs && answer.probs[row];
  const dense = probs !== undefined && shape(probs).length > 1;
  const each = answer.mean ? targets(answer, row) : [];
  let text = "Answer";
  if (dense) text = `${shape(probs).length > 2 ? "A map" : "A sequence"} of ${shape(probs).slice(1).join(" × ")}`;
  else if (about.task === "multilabel" && probs) text = distribution(probs).map((value, index) => value >= 0.5 ? labelled(index) : "").filter(Boolean).join(", ") || "no label";
  else if (probs !== undefined) { const values = distribution(probs); text = labelled(values.indexOf(Math.max(...values))); }
  else if (each.length) text = each.length > 1 ? `${each.length} targets` : each[0];
  box.append(made("h2", text));
  if (each.length > 1) {
    const list = made("dl", undefined, "measures targets");
    each.slice(0, FEW).forEach((line, index) => list.append(made("dt", `Target ${index + 1}`), made("dd", line)));
    if (each.length > FEW) list.append(made("dd", `${each.length - FEW} more are below, as JSON`, "why"));
    box.append(list);
  }
  if (answer.abstain) {
    const flags = [answer.abstain[row]].flat(4), count = flags.filter(Boolean).length, abstains = count > 0, rule = about.threshold;
    const rising = rule && ["confidence", "margin", "max_logit"].includes(rule.score);
    const side = abstains ? (rising ? "below" : "above") : (rising ? "at least" : "at most");
    const why = rule ? `: ${rule.score.replaceAll("_", " ")} is ${side} ${number(rule.value)}` : "";
    const places = abstains && flags.length > 1 ? ` on ${count} of ${flags.length}` : "";
    box.append(made("p", abstains ? `The ensemble abstains${places}${why}` : `The ensemble answers${why}`, `state${abstains ? " abstains" : ""}`));
  }
  return { box, dense };
}

function card(answer, row, picture) {
  const { box, dense } = heading(answer, row), parts = made("article", undefined, `answer${picture ? "" : " bare"}`);
  if (picture) { const image = made("img"); image.src = picture; image.alt = `Image ${row + 1}`; parts.append(image); }
  const probs = answer.probs && answer.probs[row];
  box.append(measures(answer, row));
  box.lastChild.style.marginTop = "1rem";
  parts.append(box);
  if (probs !== undefined && !dense) {
    const values = distribution(probs);
    parts.append(part("Probabilities", probabilities(values)));
    if (answer.member_probs && about.task !== "multilabel") parts.append(part("Members' votes", votes(answer.member_probs[row], values.indexOf(Math.max(...values)))));
  } else if (answer.member_mean && shape(answer.member_mean[row]).length <= 2) {
    const members = answer.member_mean[row].map(one => [one].flat()), count = members[0].length;
    for (let index = 0; index < Math.min(count, FEW); index++) parts.append(part(count > 1 ? `Members, target ${index + 1}` : "Members", means(members.map(one => one[index]))));
  }
  const all = made("details", undefined, "whole"), one = Object.fromEntries(Object.entries(answer).filter(([key]) => key !== "notes").map(([key, value]) => [key, value[row]]));
  all.append(made("summary", "As JSON"), made("pre", JSON.stringify(one, null, 1).slice(0, 20000)));
  parts.append(all);
  return parts;
}

function show(answer, pictures = []) {
  const count = Object.entries(answer).find(([key]) => key !== "notes")[1].length;
  const cards = Array.from({ length: Math.min(count, MOST) }, (_, row) => card(answer, row, pictures[row]));
  const more = count > MOST ? [made("p", `${count - MOST} more rows are not shown.`, "note")] : [];
  at("answers").replaceChildren(...(answer.notes || []).map(line => made("p", line, "note")), ...cards, ...more);
}

async function predict(options, pictures) {
  say("");
  at("predict").disabled = true;
  try { show(await ask("/predict", { method: "POST", ...options }), pictures); await refresh(); }
  catch (error) { at("answers").replaceChildren(); say(error.message); }
  at("predict").disabled = false;
}

let shown = [];
function send(files) {
  const images = [...files].filter(file => /^image\/(png|jpeg)$/.test(file.type));
  if (!images.length) { say("Only PNG and JPEG images can be dropped here."); return; }
  const body = new FormData();
  images.forEach(file => body.append("images", file));
  shown.forEach(URL.revokeObjectURL);
  shown = images.map(file => URL.createObjectURL(file));
  predict({ body }, shown);
}

at("files").addEventListener("change", event => { send(event.target.files); event.target.value = ""; });
for (const kind of ["dragover", "drop", "dragleave"]) at("drop").addEventListener(kind, event => {
  event.preventDefault();
  at("drop").classList.toggle("over", kind === "dragover");
  if (kind === "drop") send(event.dataTransfer.files);
});
for (const kind of ["dragover", "drop"]) addEventListener(kind, event => event.preventDefault());  // a miss must not leave the page

at("form").addEventListener("submit", event => {
  event.preventDefault();
  let rows;
  try { rows = JSON.parse(at("rows").value); } catch (error) { say(`This is no JSON: ${error.message}`); return; }
  predict({ body: JSON.stringify({ rows: batched(rows) }), headers: { "Content-Type": "application/json" } });
});
at("unlock").addEventListener("click", () => { token = at("token").value; refresh(); });
at("token").addEventListener("keydown", event => { if (event.key === "Enter") { event.preventDefault(); at("unlock").click(); } });
refresh();

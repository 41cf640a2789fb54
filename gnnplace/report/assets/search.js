// The search: ops whose module or name matches stand out, and are listed by module with their times.
const MOST_GROUPS = 24, MOST_LISTED = 100;

// Whether a name has the text as whole parts of its path: layer.3 is not in layer.31.
function holdsPath(name, text) {
  for (let at = name.indexOf(text); at >= 0; at = name.indexOf(text, at + 1)) {
    const before = at === 0 || name[at - 1] === ".", after = at + text.length;
    if (before && (after === name.length || name[after] === "." || name[after] === "#")) return true;
  }
  return false;
}

function matcher(text) {
  if (!text.includes("*")) return name => holdsPath(name, text);
  const pattern = text.split("*").map(part => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&")).join(".*");
  const expression = new RegExp(`^${pattern}$`);
  return name => expression.test(name);
}

// Marks the ops that match: by path first, and by any part of a name where no path does.
function markFound(graph, query) {
  const text = query.toLowerCase(), tries = text.includes("*") ? [matcher(text)] : [matcher(text), name => name.includes(text)];
  for (const match of tries) {
    const inModule = graph.modules.map((name, k) => match(name.toLowerCase()) || (graph.covers[k] || []).some(part => match(part.toLowerCase())));
    let count = 0;
    for (let op = 0; op < graph.names.length; op++) {
      graph.found[op] = inModule[graph.module[op]] || match(graph.names[op].toLowerCase()) ? 1 : 0;
      count += graph.found[op];
    }
    if (count) return count;
  }
  return 0;
}

function search(text) {
  view.query = text.trim();
  const told = new Map();
  for (const graph of data.graphs) if (view.query) told.set(graph, markFound(graph, view.query));
  const first = view.steps[0].graph, count = told.get(first);
  byId("count").textContent = view.query ? `${count ? many(count, "op") : "No op"} of ${first.names.length.toLocaleString("en")} match${count === 1 ? "es" : ""}.` : "";
  redraw("timeline", "graph", "list");
}

// Ops that are listed, in the order of the graph.
function listedOps(graph) {
  const ops = [];
  for (let op = 0; op < graph.names.length; op++) if (!view.query || graph.found[op]) ops.push(op);
  return ops;
}

function groupsOf(graph, ops) {
  const used = [...new Set(ops.map(op => graph.module[op]))], parts = new Map(used.map(k => [k, graph.modules[k].split(".")]));
  let depth = 1;
  for (; depth < 12; depth++) if (new Set(used.map(k => parts.get(k).slice(0, depth + 1).join("."))).size > MOST_GROUPS) break;
  const groups = new Map();
  for (const op of ops) {
    const name = parts.get(graph.module[op]).slice(0, depth).join(".");
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(op);
  }
  return groups;
}

function paintList() {
  const graph = view.steps[0].graph, ops = listedOps(graph), groups = [...groupsOf(graph, ops)];
  const steps = view.steps.filter(step => step.graph === graph), heads = ["module", "ops"];
  for (const step of steps) heads.push(...(steps.length > 1 ? [`${naming(step)}: device`, "seconds of ops"] : ["device", "seconds of ops", "first start", "last end"]));
  const sums = new Map(groups.map(([name, own]) => [name, steps.map(step => summed(step, own))]));
  groups.sort((a, b) => sums.get(b[0])[0].total - sums.get(a[0])[0].total);
  const rows = groups.slice(0, 2 * MOST_GROUPS).map(([name, own]) => [button(name, () => setQuery(name)), own.length.toLocaleString("en"),
    ...sums.get(name).flatMap(sum => [sum.where, seconds(sum.total), ...(steps.length > 1 ? [] : [seconds(sum.begin), seconds(sum.end)])])]);
  const parts = [element("h3", view.query ? `What matches ${view.query}` : "All ops by module"), table(heads, rows)];
  if (groups.length > 2 * MOST_GROUPS) parts.push(element("p", `${groups.length - 2 * MOST_GROUPS} more modules are not listed.`, "hint"));
  if (view.query && ops.length) parts.push(...opList(view.steps[0], ops));
  byId("found").replaceChildren(...parts);
}

// A step's name, with its clock where two have one name.
function naming(step) {
  return view.steps.filter(other => other.name === step.name).length > 1 ? step.label : step.name;
}

function summed(step, ops) {
  const devices = new Map();
  let total = 0, begin = Infinity, end = 0;
  for (const op of ops) {
    const span = step.spanOf[op];
    if (span < 0) continue;
    const spent = step.finish[span] - step.start[span], device = step.device[span];
    total += spent;
    begin = Math.min(begin, step.start[span]);
    end = Math.max(end, step.finish[span]);
    devices.set(device, (devices.get(device) || 0) + 1);
  }
  const names = [...devices.keys()].sort((a, b) => a - b).map(device => step.devices[device]);
  const where = names.length > 3 ? `${names.length} devices` : names.join(", ") || "none";
  return { total, begin: begin === Infinity ? 0 : begin, end, where };
}

function opList(step, ops) {
  const spans = ops.map(op => step.spanOf[op]).filter(span => span >= 0).sort((a, b) => step.start[a] - step.start[b]);
  const rows = spans.slice(0, MOST_LISTED).map(span => [button(step.graph.names[step.op[span]], () => choose(step, step.op[span], true)),
    step.devices[step.device[span]], seconds(step.start[span]), seconds(step.finish[span] - step.start[span])]);
  const parts = [element("h3", "Ops by their start"), table(["op", "device", "start", "duration"], rows)];
  if (spans.length > MOST_LISTED) parts.push(element("p", `${(spans.length - MOST_LISTED).toLocaleString("en")} more ops match; search for less to see them.`, "hint"));
  return parts;
}

function setQuery(text) {
  byId("search").value = text === "(no module)" ? "" : text;
  search(byId("search").value);
}
painters.push(["list", paintList]);

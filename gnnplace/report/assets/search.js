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

// Names of groups, cut to as many parts as leave few enough, and the group of each module in use.
function groupsOf(graph) {
  const used = new Uint8Array(graph.modules.length), all = !view.query;
  for (let op = 0; op < graph.names.length; op++) if (all || graph.found[op]) used[graph.module[op]] = 1;
  const parts = new Map([...used.keys()].filter(k => used[k]).map(k => [k, graph.modules[k].split(".")]));
  const cut = depth => [...parts].map(([k, names]) => [k, names.slice(0, depth).join(".")]);
  let depth = 1;
  while (depth < 12 && new Set(cut(depth + 1).map(([, name]) => name)).size <= MOST_GROUPS) depth++;
  const names = [...new Set(cut(depth).map(([, name]) => name))], place = new Map(names.map((name, k) => [name, k]));
  const group = new Int32Array(graph.modules.length).fill(-1);
  for (const [k, name] of cut(depth)) group[k] = place.get(name);
  return { names, group };
}

// Of each group: its ops, their seconds, first start, last end and devices, in one pass.
function sumsOf(step, { names, group }) {
  const { graph } = step, all = !view.query, wide = step.devices.length;
  const sums = names.map(() => ({ ops: 0, total: 0, begin: Infinity, end: 0 })), on = new Uint8Array(names.length * wide);
  for (let op = 0; op < graph.names.length; op++) {
    if (!all && !graph.found[op]) continue;
    const own = group[graph.module[op]], sum = sums[own], span = step.spanOf[op];
    sum.ops += 1;
    if (span < 0) continue;
    sum.total += step.finish[span] - step.start[span];
    sum.begin = Math.min(sum.begin, step.start[span]);
    sum.end = Math.max(sum.end, step.finish[span]);
    on[own * wide + step.device[span]] = 1;
  }
  sums.forEach((sum, k) => { sum.where = placesTold(step.devices.filter((_, device) => on[k * wide + device])); });
  return sums;
}

const placesTold = names => (names.length > 3 ? `${names.length} devices` : names.join(", ") || "none");

function paintList() {
  const graph = view.steps[0].graph, steps = view.steps.filter(step => step.graph === graph), beside = steps.length > 1;
  const groups = groupsOf(graph), sums = steps.map(step => sumsOf(step, groups)), heads = ["module", "ops"];
  for (const step of steps) heads.push(...(beside ? [`${naming(step)}: device`, "seconds of ops"] : ["device", "seconds of ops", "first start", "last end"]));
  const order = [...groups.names.keys()].sort((a, b) => sums[0][b].total - sums[0][a].total);
  const cells = sum => [sum.where, seconds(sum.total), ...(beside ? [] : [seconds(Math.min(sum.begin, sum.end)), seconds(sum.end)])];
  const rows = order.slice(0, 2 * MOST_GROUPS).map(k => [button(groups.names[k], () => setQuery(groups.names[k])), sums[0][k].ops.toLocaleString("en"),
    ...sums.flatMap(own => cells(own[k]))]);
  const parts = [element("h3", view.query ? `What matches ${view.query}` : "All ops by module"), table(heads, rows)];
  if (order.length > 2 * MOST_GROUPS) parts.push(element("p", `${order.length - 2 * MOST_GROUPS} more modules are not listed.`, "hint"));
  if (view.query && rows.length) parts.push(...opList(view.steps[0]));
  byId("found").replaceChildren(...parts);
}

// A step's name, with its clock where two have one name.
function naming(step) {
  return view.steps.filter(other => other.name === step.name).length > 1 ? step.label : step.name;
}

function opList(step) {
  const spans = [];
  for (let op = 0; op < step.spanOf.length; op++) if (step.graph.found[op] && step.spanOf[op] >= 0) spans.push(step.spanOf[op]);
  spans.sort((a, b) => step.start[a] - step.start[b]);
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
